"""Each cause of an exception is visited once, even if the causes form a ring."""

from __future__ import annotations

from itertools import pairwise

from pointsman.bus.jetstream.tls import tls_fault
from pointsman.util.exceptions import causes


def ring() -> list[Exception]:
    errors = [ConnectionResetError("reset"), OSError("closed"), RuntimeError("hung up")]
    for error, cause in pairwise([*errors, errors[0]]):
        error.__context__ = cause
    return errors


def test_each_exception_of_a_ring_is_seen_once() -> None:
    errors = ring()

    assert list(causes(errors[0])) == errors


def test_a_long_chain_is_cut() -> None:
    errors = [ValueError(str(number)) for number in range(50)]
    for error, cause in pairwise(errors):
        error.__cause__ = cause

    assert list(causes(errors[0])) == errors[:10]


def test_a_ring_of_causes_without_a_tls_fault_has_none() -> None:
    """If a broker closes a connection during the handshake, nats-py raises an error with such a ring of causes."""
    assert tls_fault(ring()[0]) is None

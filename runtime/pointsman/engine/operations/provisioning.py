"""Create the streams of a namespace, and the durable consumers of its teams and agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pointsman.engine.process.consumers import (
    MAX_WAITING_DELIVERIES,
    DurableConsumer,
    agent_consumer,
    input_consumers,
    request_consumer,
    webhook_consumers,
)
from pointsman.ports.bus import Bus
from pointsman_schemas.subjects import Subjects

__all__ = ["DEFAULT_MAX_IN_FLIGHT", "provision"]

DEFAULT_MAX_IN_FLIGHT = 1_000
"""Largest number of attempts of an agent that run at the same time, if the agent sets no number."""


async def provision(
    bus: Bus,
    subjects: Subjects,
    *,
    teams: Iterable[str],
    agents: Mapping[str, int | None],
    ack_wait: float,
    webhooks: bool = False,
) -> list[DurableConsumer]:
    """Create the missing streams, buckets and consumers.

    Args:
        bus: The bus of a user with the right to create streams and consumers.
        subjects: The subjects of the namespace.
        teams: The names of the teams.
        agents: The largest number of attempts that run at the same time, by the agent's name. If the number is None, an
            existing consumer is not changed, and a new consumer has the default.
        ack_wait: The acknowledgement deadline in seconds.
        webhooks: True to also create the buckets and consumers of webhooks. Default: False.

    Returns:
        The consumers: first those of webhooks, then those of the teams, then those of the agents.

    Raises:
        ConfigurationError: The broker refuses a stream or a consumer.
    """
    await bus.set_up()
    await bus.key_value(subjects.gateway_bucket)
    created: list[DurableConsumer] = []
    if webhooks:
        for bucket in (subjects.webhooks_bucket, subjects.webhook_secrets_bucket):
            await bus.key_value(bucket)
        for wanted in webhook_consumers(subjects):
            await _create(bus, wanted, ack_wait, max_in_flight=MAX_WAITING_DELIVERIES)
            created.append(wanted)
    for team in teams:
        for wanted in (request_consumer(subjects, team), *input_consumers(subjects, team)):
            await _create(bus, wanted, ack_wait, ranked=True)
            created.append(wanted)
        wanted = agent_consumer(subjects, team)  # other teams may hand off tasks to a team as to an agent
        await _create(bus, wanted, ack_wait)
        created.append(wanted)
    for agent, limit in agents.items():
        wanted = agent_consumer(subjects, agent)
        if limit is not None or await bus.depth(wanted.name, wanted.stream) is None:
            await _create(bus, wanted, ack_wait, max_in_flight=limit or DEFAULT_MAX_IN_FLIGHT)
        created.append(wanted)
    return created


async def _create(
    bus: Bus,
    wanted: DurableConsumer,
    ack_wait: float,
    *,
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    ranked: bool = False,
) -> None:
    consumer = await bus.consumer(
        wanted.name, wanted.stream, wanted.subject, ack_wait=ack_wait, max_in_flight=max_in_flight, ranked=ranked
    )
    await consumer.close()

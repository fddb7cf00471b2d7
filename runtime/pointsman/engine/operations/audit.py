"""Record operations that no log records: a workflow was forgotten, or a dead letter was discarded or replayed.

A dead letter is also recorded if it is removed because a resumed workflow does its task again.

The broker's permissions ensure that the actor in the subject of a record is the user. Retention deletes a record after
the same time as a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from pointsman.engine.process.retrying import publish_with_retry
from pointsman.errors import ConflictError, ContractError
from pointsman.ports.bus import Bus
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.events import Audit
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects

__all__ = ["AuditRecord", "read_audit", "store_audit"]


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An operation.

    Attributes:
        actor: The user of the operation. The broker's permissions ensure that the name is correct.
        at: The time at which the broker stored the record.
        content: The operation.
    """

    actor: str
    at: datetime
    content: Audit


async def store_audit(bus: Bus, subjects: Subjects, actor: str, id: str, content: Audit, at: datetime) -> None:
    """Store the record of an operation. A repeated call with the same `id` has no effect.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        actor: The user.
        id: The id of the operation, a token.
        content: The operation.
        at: The time.

    Raises:
        BusUnavailableError: The broker does not answer.
    """
    envelope = Envelope(
        id=id, type=Audit.event_type, source=subjects.source("client", actor), time=at, subject=content.workflow_id
    )
    with suppress(ConflictError):  # an earlier try of this process stored the record
        subject = subjects.audit(content.action, actor, id)
        await publish_with_retry(bus, subject, dump(content), encode(envelope), expect=0)


async def read_audit(bus: Bus, subjects: Subjects) -> Sequence[AuditRecord]:
    """Read the records of a namespace.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.

    Returns:
        The records, oldest first, without messages that are not records.
    """
    found: list[AuditRecord] = []
    async for stored in bus.read("controls", subjects.audits):
        with suppress(ContractError):
            _, _, action, actor, _ = stored.subject.split(".")
            content = parse(Audit, decode(stored.headers, stored.body)[1])
            if content.action == action:
                found.append(AuditRecord(actor, stored.at, content))
    return found

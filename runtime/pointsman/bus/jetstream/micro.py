"""Build the answers of a service by the NATS micro protocol (ADR-32). Times in the answers are in nanoseconds.

Clients use this protocol to discover agents and to read their counters. An agent receives its work from a durable
consumer of JetStream, not by this protocol.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from pointsman.ports.bus import Service
from pointsman_schemas.ids import token

__all__ = ["micro_answer", "micro_subjects"]

_VERBS = ("PING", "INFO", "STATS")


def micro_subjects(service: Service) -> list[tuple[str, str]]:
    """Return pairs of a subject and a verb.

    A subject addresses all services, all services with the name of `service`, or only this instance.
    """
    name, instance = token(service.name, "service"), token(service.id, "instance")
    return [(f"$SRV.{verb}{scope}", verb) for verb in _VERBS for scope in ("", f".{name}", f".{name}.{instance}")]


def micro_answer(verb: str, service: Service, started: datetime) -> bytes:
    """Return the JSON answer of `service` to the `verb` of a subject; `started` is in UTC."""
    answer: dict[str, Any] = {
        "type": f"io.nats.micro.v1.{verb.lower()}_response",
        "name": service.name,
        "id": service.id,
        "version": service.version,
        "metadata": {**service.metadata, "jetstream_filter": service.subject},
    }
    if verb == "INFO":
        # An agent has no endpoint, because its work comes from a durable consumer. A program that subscribed to the
        # subject of an endpoint would receive each handoff a second time, outside of the queue.
        answer |= {"description": service.description, "endpoints": []}
    elif verb == "STATS":
        spent = int(service.processing_time * 1e9)
        answer |= {
            "started": started.isoformat().replace("+00:00", "Z"),
            "endpoints": [
                {
                    "name": service.name,
                    "num_requests": service.requests,
                    "num_errors": service.errors,
                    "last_error": service.last_error,
                    "processing_time": spent,
                    "average_processing_time": spent // service.requests if service.requests else 0,
                    "data": {"orphaned_handlers": service.orphaned_handlers()},
                }
            ],
        }
    return json.dumps(answer).encode()

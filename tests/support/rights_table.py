"""Write the table of rights in docs/security.md. `python -m support.rights_table` prints the table."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from pointsman.grants.permissions import TRUSTED_ROLES, GrantRole, role_permissions

__all__ = ["rights_table"]

_NAMESPACE = "ns"
_READ = re.compile(r"\$JS\.(?:edge\.)?API\.(?:DIRECT\.GET|CONSUMER\.CREATE)\.(\w+)(?:\.reader-\S+?)?(?:\.([^.].*))?$")
_ADMIN = re.compile(r"\$JS\.(?:edge\.)?API\.(STREAM\.(?:PURGE|MSG\.DELETE|CREATE|UPDATE)|CONSUMER\.CREATE)\.(\w+)")
_TAKE = re.compile(r"\$JS\.(?:edge\.)?API\.CONSUMER\.MSG\.NEXT\.(\w+)\.(\S+)")
_VERBS = {
    "STREAM.PURGE": "purge",
    "STREAM.MSG.DELETE": "delete messages of",
    "STREAM.CREATE": "create",
    "STREAM.UPDATE": "change",
}


def rights_table() -> str:
    """Return a table of the roles with account, subjects to publish on, and data to read and to change."""
    lines = [
        "| Role | Account | Publishes on | Reads | Takes and changes |",
        "|---|---|---|---|---|",
    ]
    for role in GrantRole:
        rights = role_permissions(role, _NAMESPACE, user="USER", team="TEAM", agent="AGENT")
        reads, changes = defaultdict[str, set[str]](set), set[str]()
        for subject in rights.publish:
            if found := _TAKE.fullmatch(subject):
                changes.add(f"take `{found[2]}` of {found[1]}")
            elif (found := _ADMIN.match(subject)) and found[1] in _VERBS:
                changes.add(f"{_VERBS[found[1]]} {found[2]}")
            elif found := _READ.fullmatch(subject):
                reads[found[1]].add(found[2] or ">")
            elif ".STREAM.MSG.GET." in subject:
                reads[subject.rpartition(".")[2]].add(">")
        heard = [each for each in rights.subscribe if not each.startswith("$SRV")]
        publishes = [each for each in rights.publish if not each.startswith(("$JS.", "$SRV."))]
        whole = [name for name, subjects in reads.items() if ">" in subjects]
        shown = ["every stream"] if len(whole) > 4 else []
        shown += [f"{name}: {_code(reads[name])}" for name in sorted(reads) if name not in whole]
        lines.append(
            f"| {role} | {'streams' if role in TRUSTED_ROLES else 'edge'} | {_code(publishes)} | "
            f"{'; '.join([*shown, 'receives ' + _code(heard)])} | {_grouped(changes)} |"
        )
    return "\n".join(lines)


def _code(subjects: Iterable[str]) -> str:
    return ", ".join(f"`{each}`" for each in sorted(subjects)) or "nothing"


def _grouped(changes: set[str]) -> str:
    """Return the changes, grouped by verb."""
    verbs = defaultdict[str, list[str]](list)
    for change in sorted(changes):
        verb, _, stream = change.rpartition(" ")
        verbs[verb].append(stream)
    return "; ".join(f"{verb} {', '.join(streams)}" for verb, streams in verbs.items()) or "nothing"


if __name__ == "__main__":
    print(rights_table())  # noqa: T201

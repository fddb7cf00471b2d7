"""The commands that are one process of a system: supervisor, worker, dashboard. What each needs is all it loads."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman import app
from pointsman.cli.render.output import Code
from pointsman.settings import Settings
from pointsman.util.child_processes import exit_with_parent

__all__ = ["dashboard", "supervisor", "worker"]


def supervisor(target: str, *, url: str | None, namespace: str | None, with_parent: bool) -> Code:
    if with_parent:
        exit_with_parent()
    return Code(app.run(app.supervise(target, Settings.load(url=url, namespace=namespace))))


def worker(targets: Sequence[str], *, url: str | None, namespace: str | None, with_parent: bool) -> Code:
    if with_parent:
        exit_with_parent()
    return Code(app.run(app.work(targets, Settings.load(url=url, namespace=namespace))))


def dashboard(
    *, host: str | None, port: int | None, token: str | None, hosts: Sequence[str], url: str | None,
    namespace: str | None, with_parent: bool,
) -> Code:  # fmt: skip
    if with_parent:
        exit_with_parent()
    settings = Settings.load(
        url=url, namespace=namespace, dashboard_host=host, dashboard_port=port, dashboard_token=token
    )

    def ready(address: str) -> None:
        print(f"Dashboard on {address}  (Ctrl-C ends it)", flush=True)

    return Code(app.run(app.dashboard(settings, hosts=hosts, ready=ready)))

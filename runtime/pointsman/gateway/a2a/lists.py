"""List the tasks of one team and one caller from the index, the newest change first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from a2a.types.a2a_pb2 import ListTasksRequest, ListTasksResponse, Task, TaskState
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import (
    ListTasksCursor,
    apply_history_length,
    decode_list_tasks_cursor,
    encode_list_tasks_cursor,
)

from pointsman.engine.operations.queued_requests import list_queued_requests
from pointsman.gateway.a2a.reading import TaskReader, queued_task
from pointsman.gateway.a2a.tasks import new_task, state_of
from pointsman.gateway.callers import Caller
from pointsman.gateway.context import Context
from pointsman.gateway.views import item_of
from pointsman.index.rows import Search

__all__ = ["list_tasks"]

_MAX_QUEUED = 100  # maximum number of requests in a list that wait for admission
_CATCH_UP_S = 1.0  # seconds to wait until the index has the newest entry of the log


@dataclass(frozen=True, slots=True)
class _Item:
    task: Task
    changed_at: datetime

    @property
    def key(self) -> tuple[int, str]:
        """The sort key: the time in microseconds, as in the log, and then the id, because times may be equal."""
        return int(self.changed_at.timestamp() * 1_000_000), self.task.id


async def list_tasks(
    context: Context, caller: Caller, team: str, reader: TaskReader, params: ListTasksRequest
) -> ListTasksResponse:
    """List tasks.

    Logs are read only if the request asks for artifacts or for a history.

    Args:
        context: The parts of the gateway.
        caller: The caller. Only the caller's own tasks are listed.
        team: The team.
        reader: The reader of tasks.
        params: The filters and the page.

    Returns:
        The page.

    Raises:
        InvalidParamsError: The token of the page was not made by this method.
    """
    items = sorted(
        (each for each in await _items(context, caller, team) if _fits(each, params)),
        key=lambda each: each.key,
        reverse=True,
    )
    size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
    after = _parse(params.page_token)
    rest = [each for each in items if after is None or each.key < after]
    page = rest[:size]
    response = ListTasksResponse(page_size=size, total_size=len(items))
    for each in page:
        response.tasks.append(await _shown(each.task, reader, params))
    if len(rest) > size:
        changed, id = page[-1].key
        response.next_page_token = encode_list_tasks_cursor(ListTasksCursor(changed, id))
    return response


async def _items(context: Context, caller: Caller, team: str) -> list[_Item]:
    client = context.client
    # Read the queued requests before the index: a request that is admitted between the two reads is then in both. With
    # the other order, the request could be in neither.
    waiting = await list_queued_requests(client.bus, client.subjects, team, _MAX_QUEUED)
    await context.index.catch_up(_CATCH_UP_S)
    found = {
        row.id: _Item(
            new_task(row.id, row.thread or row.id, state_of(item_of(row).status, refused=row.refused), row.updated_at),
            row.updated_at,
        )
        for row in context.index.matching(Search(team=team, caller=caller.name))
        if not row.imported
    }
    for each in waiting:
        if each.request.subject.rpartition(".")[2] == caller.name:
            found.setdefault(each.workflow, _Item(queued_task(each), each.request.at))
    return list(found.values())


def _fits(item: _Item, params: ListTasksRequest) -> bool:
    state = item.task.status.state
    if params.context_id and params.context_id != item.task.context_id:
        return False
    if params.status not in (TaskState.TASK_STATE_UNSPECIFIED, state):
        return False
    if params.HasField("status_timestamp_after"):
        return item.changed_at >= params.status_timestamp_after.ToDatetime(tzinfo=UTC)
    return True


async def _shown(task: Task, reader: TaskReader, params: ListTasksRequest) -> Task:
    if params.include_artifacts or params.history_length:
        fold = await reader.fold(await reader.find(task.id))
        task = Task()
        task.CopyFrom(fold.task)
    if not params.include_artifacts:
        task.ClearField("artifacts")
    if not params.history_length:
        task.ClearField("history")
    return apply_history_length(task, params)


def _parse(token: str) -> tuple[int, str] | None:
    if not token:
        return None
    cursor = decode_list_tasks_cursor(token)
    if cursor is None or cursor.timestamp_ns is None:
        raise InvalidParamsError("the pageToken is not valid; omit the pageToken to list from the start")
    return cursor.timestamp_ns, cursor.task_id  # despite its name, the field has the microseconds of `key`

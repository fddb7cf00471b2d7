"""The steps of an attempt's tool loop: each is kept before it is acted on, and none that was kept is taken again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from pointsman.authoring.context import Context
from pointsman.errors import OversizeEventError, TaskError
from pointsman.ports.model import ModelReply, ToolCall
from pointsman_schemas.events import ErrorKind, Step, StepToolCall, Usage

__all__ = ["DurableSteps"]


class DurableSteps:
    """What one attempt has done so far. Without a journal it knows nothing and keeps nothing.

    An answer that is kept and a call of it that has no result: the tool may have been running when the process died,
    and whether it did its work nobody knows.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._journal = context.step_journal
        self._steps: Mapping[str, Step] = {}
        self._continued: set[int] = set()  # turns whose tools somebody else may have started
        self._lost = 0

    async def load(self) -> None:
        """Learn what was done before, if anybody worked on this attempt before."""
        self._steps = await self._context._record.load()
        self._lost = self._context.deliveries - 1
        if self._steps:
            await self._context.progress(f"continued after {len(self._steps)} steps that were done before")

    async def model_reply(self, turn: int, ask: Callable[[Context], Awaitable[ModelReply]]) -> ModelReply:
        """The model's answer of `turn`: the one that was kept, or else what `ask` gives in the context it is given.

        One without calls is not kept: what follows from it is the result, which is kept itself, or one repair.
        """
        if (step := self._steps.get(f"answer-{turn}")) is not None:
            if step.attempt != self._context.attempt:
                return await self._adopt_reply(turn, step)
            self._continued.add(turn)
            return _reply_of_step(step)
        context = self._context._for_call()
        reply = await ask(context)
        if self._journal is None or not reply.calls:
            return reply
        step = self._context._record.new_step(
            f"answer-{turn}",
            text=reply.text,
            calls=tuple(StepToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in reply.calls),
            data=reply.data,
            finish=reply.finish,
            model=reply.model,
            **context._call_record,  # what was used in vain before it came, too
        )
        try:
            kept = await self._context._record.append(step)
        except OversizeEventError as error:
            raise TaskError(f"the model's answer cannot be kept: {error}", kind=ErrorKind.OVERSIZE) from None
        if kept is not step:  # somebody else works on this attempt, or did: one of us will be first with the result
            self._steps = await self._context._record.load()
            self._continued.add(turn)
        return _reply_of_step(kept)

    async def _adopt_reply(self, turn: int, step: Step) -> ModelReply:
        """The answer of an earlier attempt that stopped to ask a person, now this one's: it is paid for, and its calls
        that have no result were not begun. It is kept again, for whoever gets this attempt next cannot know."""
        if self._journal is not None:
            context = self._context
            own = step.model_copy(update={"attempt": context.attempt, "usage": Usage(), "at": context.now()})
            if await context._record.append(own) is not own:
                self._continued.add(turn)
        return _reply_of_step(step)

    def lost_calls(self) -> int:
        """How many model calls were under way, as far as anybody can know, when workers left that had this attempt
        before. Asked again it is none."""
        lost, self._lost = self._lost, 0
        return lost

    def tool_result(self, turn: int, place: int) -> tuple[str, bool] | None:
        """What the tool called in `turn` at `place` gave: its text, and whether that is an error."""
        step = self._steps.get(f"result-{turn}-{place}")
        return (step.text, step.is_error) if step is not None else None

    def interrupted_calls(self, turn: int, places: Sequence[int]) -> list[int]:
        """Those of `places` where a tool may have been started by somebody else, and nobody knows what it did."""
        if turn not in self._continued:
            return []
        return [place for place in places if self.tool_result(turn, place) is None]

    async def record_result(
        self, turn: int, place: int, text: str, is_error: bool, /, **told: object
    ) -> tuple[str, bool]:
        """Keep what a tool gave, with what it `_call_record`, and return what counts."""
        self._lost = 0  # there was a tool to run first: whoever had the attempt before was at it, and asked no model
        if self._journal is None:
            return text, is_error
        kept, name = self._context._record, f"result-{turn}-{place}"
        try:
            step = await kept.append(kept.new_step(name, text=text, is_error=is_error, **told))
        except OversizeEventError as error:
            text = f"the tool has run, but its result of {len(text)} characters is too large to be kept: {error}"
            step = await kept.append(kept.new_step(name, text=text, is_error=True, **told))
        return step.text, step.is_error


def _reply_of_step(step: Step) -> ModelReply:
    return ModelReply(
        text=step.text,
        calls=tuple(ToolCall(call.id, call.name, call.arguments) for call in step.calls),
        data=step.data,
        usage=step.usage,
        finish=step.finish,
        model=step.model,
    )

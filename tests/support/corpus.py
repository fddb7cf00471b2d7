"""Read recorded answers of providers from tests/unit/llm/corpus: a file for each server, a case for each shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pointsman.errors import ModelReplyError
from pointsman.llm.anthropic import AnthropicModel
from pointsman.llm.foreign_json import Field
from pointsman.llm.openai import OpenAIModel
from pointsman.llm.openai_responses import OpenAIResponsesModel
from pointsman.llm.provider_model import ProviderModel
from pointsman.llm.replies import unreadable
from pointsman.ports.model import ModelReply, ModelRequest, ToolSpec, Turn
from support.adapters import KEY, SCHEMA, WEATHER_TOOL

__all__ = ["Case", "cases", "errors", "refusals"]

FOLDER = Path(__file__).parents[1] / "unit/llm/corpus"
MODELS: dict[str, Callable[..., ProviderModel]] = {
    "chat_completions": OpenAIModel,
    "messages": AnthropicModel,
    "responses": OpenAIResponsesModel,
}
TOOLS = (WEATHER_TOOL, ToolSpec("sun", "The sun over a city", SCHEMA))


@dataclass(frozen=True)
class Case:
    """A recorded reply, whole or streamed, with the expected result."""

    dialect: str
    name: str
    kind: str
    body: Any
    expected: dict[str, Any]
    request: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.dialect}: {self.name} ({self.kind})"

    @property
    def is_error(self) -> bool:
        return "error" in self.expected

    def asking(self, **more: Any) -> ModelRequest:
        given: dict[str, Any] = {"turns": (Turn("user", "hello"),), "tools": TOOLS, **self.request, **more}
        return ModelRequest(model="", instructions="Be brief.", **given)

    def model(self, **more: Any) -> ProviderModel:
        return MODELS[self.dialect]("m", **{"api_key": KEY, "base_url": "http://127.0.0.1:9/v1", **more})

    def read(self, model: ProviderModel, body: Any, on_text: Callable[[str], None] | None = None) -> ModelReply:
        """Read a body as the adapter does, without a connection."""
        request = self.asking(on_text=on_text)
        if self.kind == "whole":
            return model.reply(Field(body), request)
        stream = model.dialect.stream(request)
        try:
            for place, event in enumerate(body, 1):
                field = Field(event, f"event {place}")
                model._raise_error(field, model._usage(stream.whole()))
                if (text := stream.add(field)) and on_text is not None:
                    on_text(text)
        except ModelReplyError as error:
            failure = unreadable(error, model.provider, model._usage(stream.whole()))
            raise failure from None
        return model.reply(stream.whole(), request)

    @property
    def sent(self) -> bytes:
        """The body in the server's bytes."""
        if self.kind == "whole":
            return json.dumps(self.body).encode()
        return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in self.body)


def cases() -> list[Case]:
    return [
        case
        for dialect in MODELS
        for file in sorted((FOLDER / dialect).glob("*.json"))
        for case in _cases(dialect, file)
    ]


def errors() -> list[dict[str, Any]]:
    """Answers with an error status."""
    return [case for file in sorted((FOLDER / "errors").glob("*.json")) for case in _read(file)]


def refusals() -> list[dict[str, Any]]:
    """Answers that refuse a parameter and name it."""
    return [case for file in sorted((FOLDER / "refusals").glob("*.json")) for case in _read(file)]


def _cases(dialect: str, file: Path) -> Iterator[Case]:
    for case in _read(file):
        for kind in ("whole", "stream"):
            if kind in case:
                name = f"{file.stem}: {case['name']}"
                expected: dict[str, Any] = {key: case[key] for key in ("reply", "error") if key in case}
                yield Case(dialect, name, kind, case[kind], expected, case.get("request", {}))


def _read(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["cases"]
    return found

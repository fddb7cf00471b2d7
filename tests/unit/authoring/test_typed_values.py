"""A value is serialized by its declared type. If the type cannot be serialized, its definition is refused.

Class of fault: the schema of a type can be published, but its values fail in every run, in a tool even after its side
effect. Another fault of this class is that the current fields of an instance are sent without a check.
"""

from __future__ import annotations

import enum
import pathlib
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from ipaddress import IPv4Address, IPv6Network
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import pydantic.dataclasses
import pytest
from jsonschema import Draft202012Validator
from pydantic import (
    AfterValidator,
    AnyUrl,
    Base64Bytes,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    InstanceOf,
    JsonValue,
    RootModel,
    SecretBytes,
    SecretStr,
    WithJsonSchema,
    computed_field,
    field_serializer,
    field_validator,
    model_validator,
)
from typing_extensions import TypedDict

from pointsman import Context, TaskError, agent, tool
from pointsman.authoring.json_types import InputType, OutputType
from pointsman.authoring.ports import RecordingReporter
from pointsman.errors import ConfigurationError
from pointsman_schemas.strict_json import compact_json

T = TypeVar("T")


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    name: str
    price: Decimal


class Row(TypedDict):
    price: Decimal
    at: time


@dataclass
class Plain:
    price: Decimal
    lasts: timedelta = timedelta(hours=1)


@dataclass(slots=True, frozen=True)
class Slotted:
    ids: frozenset[int]


@pydantic.dataclasses.dataclass
class Checked:
    count: int = Field(ge=0)
    given: InitVar[int] = 1
    made: int = field(init=False, default=3)

    def __post_init__(self, given: int) -> None:
        self.made = given + 1


class Wrapped(BaseModel, Generic[T]):
    value: T


class Node(BaseModel):
    price: Decimal = Decimal("1.5")
    below: list[Node] = []


class Encoded(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


class Shown(BaseModel):
    data: bytes

    @field_serializer("data")
    def _as_hex(self, data: bytes) -> str:
        return data.hex()


WRITTEN: dict[str, tuple[Any, Any, JsonValue]] = {
    "Decimal": (Decimal, Decimal("1.10"), "1.10"),
    "timedelta": (timedelta, timedelta(minutes=90), "PT1H30M"),
    "datetime": (datetime, datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
    "date": (date, date(2026, 1, 2), "2026-01-02"),
    "time": (time, time(1, 2, 3), "01:02:03"),
    "set": (set[int], {1}, [1]),
    "frozenset": (frozenset[str], frozenset({"a"}), ["a"]),
    "deque": (deque[int], deque([1, 2]), [1, 2]),
    "tuple": (tuple[int, Decimal], (1, Decimal(2)), [1, "2"]),
    "an iterable": (Iterable[Decimal], [Decimal(1)], ["1"]),
    "a sequence": (Sequence[pathlib.Path], [pathlib.Path("a")], ["a"]),
    "keys int": (dict[int, str], {1: "a"}, {"1": "a"}),
    "keys date": (dict[date, Decimal], {date(2026, 1, 2): Decimal(1)}, {"2026-01-02": "1"}),
    "keys UUID": (Mapping[uuid.UUID, int], {uuid.UUID(int=1): 1}, {str(uuid.UUID(int=1)): 1}),
    "keys Enum": (dict[Size, int], {Size.SMALL: 1}, {"s": 1}),
    "keys bool": (dict[bool, int], {True: 1}, {"true": 1}),
    "keys tuple": (dict[tuple[int, int], int], {(1, 2): 3}, {"1,2": 3}),
    "OrderedDict": (OrderedDict[str, Decimal], OrderedDict(a=Decimal(1)), {"a": "1"}),
    "defaultdict": (defaultdict[int, set[int]], defaultdict(set, {1: {2}}), {"1": [2]}),
    "Counter": (Counter[str], Counter("aab"), {"a": 2, "b": 1}),
    "Path": (pathlib.Path, pathlib.Path("/a/b"), "/a/b"),
    "UUID": (uuid.UUID, uuid.UUID(int=7), str(uuid.UUID(int=7))),
    "Enum": (Size, Size.LARGE, "l"),
    "IntEnum": (Level, Level.LOW, 1),
    "Literal": (Literal["a", 1], "a", "a"),
    "NamedTuple": (Pair, Pair("a", Decimal(1)), ["a", "1"]),
    "TypedDict": (Row, {"price": Decimal(1), "at": time(1)}, {"price": "1", "at": "01:00:00"}),
    "dataclass": (Plain, Plain(Decimal(1)), {"price": "1", "lasts": "PT1H"}),
    "dataclass with slots": (Slotted, Slotted(frozenset({1})), {"ids": [1]}),
    "dataclass of pydantic": (Checked, Checked(1, 5), {"count": 1, "made": 6}),
    "generic": (Wrapped[Decimal], Wrapped[Decimal](value=Decimal(1)), {"value": "1"}),
    "recursive": (Node, Node(below=[Node()]), {"price": "1.5", "below": [{"price": "1.5", "below": []}]}),
    "RootModel": (RootModel[set[int]], RootModel[set[int]]({1}), [1]),
    "union": (int | Decimal | None, Decimal("1.5"), "1.5"),
    "Fraction": (Fraction, Fraction(1, 3), "1/3"),
    "IPv4Address": (IPv4Address, IPv4Address("10.0.0.1"), "10.0.0.1"),
    "IPv6Network": (IPv6Network, IPv6Network("::/8"), "::/8"),
    "ZoneInfo": (ZoneInfo, ZoneInfo("Europe/Berlin"), "Europe/Berlin"),
    "complex": (complex, 1 + 2j, "1+2j"),
    "AnyUrl": (AnyUrl, AnyUrl("https://a.example/b"), "https://a.example/b"),
    "ByteSize": (ByteSize, ByteSize(5), 5),
    "bytes as Base64 text": (Base64Bytes, b"AAE=", "AAE="),
    "bytes by the model's config": (Encoded, Encoded(data=b"\xff"), {"data": "_w=="}),
    "bytes by a serializer": (Shown, Shown(data=b"\xff"), {"data": "ff"}),
    "InstanceOf": (InstanceOf[Node], Node(), {"price": "1.5", "below": []}),
    "nothing declared": (Any, {1: {Decimal(1)}, "t": timedelta(1)}, {"1": ["1"], "t": "P1D"}),
    "object": (object, [pathlib.Path("a"), Plain(Decimal(1))], ["a", {"price": "1", "lasts": "PT1H"}]),
}


@pytest.mark.parametrize(("annotation", "value", "expected"), WRITTEN.values(), ids=WRITTEN)
async def test_each_declared_type_is_written_and_fits_its_schema(annotation: Any, value: Any, expected: Any) -> None:
    written = OutputType(annotation, "agent a")

    output = written.to_json(value)

    assert output == expected
    Draft202012Validator(written.schema).validate(output)


@pytest.mark.parametrize("kind", ["Decimal", "timedelta", "set", "keys int", "dataclass", "NamedTuple", "generic"])
async def test_agents_and_tools_return_what_only_pydantic_can_write(kind: str) -> None:
    annotation, value, expected = WRITTEN[kind]

    def give() -> Any:
        """Give a value."""
        return value

    give.__annotations__["return"] = annotation
    context = Context.for_test()

    assert await agent(give).run(context.handoff, context) == expected
    result = await tool(give).call("{}", context)
    assert (result.data, result.is_error) == (expected, False)


class Unwritable:
    pass


class Odd(enum.Enum):
    OBJECT = object()


REFUSED_OUTPUTS: dict[str, Any] = {
    "bytes": bytes,
    "bytes in a model": Wrapped[bytes],
    "bytes in a list": list[bytes | None],
    "bytes as values": dict[str, bytes],
    "bytes in a dataclass": pydantic.dataclasses.dataclass(type("Raw", (), {"__annotations__": {"data": bytes}})),
    "keys of a model": dict[Node, int],
    "keys of a dataclass": dict[Slotted, int],
    "keys of a frozenset": dict[frozenset[int], int],
    "a function": Callable[[], int],
    "a class": type[int],
    "a class of its own": Unwritable,
    "a class with a schema of its own": Annotated[InstanceOf[Unwritable], WithJsonSchema({"type": "string"})],
    "an enum of objects": Odd,
    "a secret": SecretStr,
    "a secret in a model": Wrapped[SecretStr],
    "secret bytes": list[SecretBytes],
    "bytearray": bytearray,
}


@pytest.mark.parametrize("annotation", REFUSED_OUTPUTS.values(), ids=REFUSED_OUTPUTS)
def test_a_type_that_json_cannot_carry_is_refused_at_definition(annotation: Any) -> None:
    def give() -> Any:
        """Give a value."""

    give.__annotations__["return"] = annotation

    with pytest.raises(ConfigurationError, match="agent give returns") as refused:
        agent(give)
    with pytest.raises(ConfigurationError, match="tool give returns"):
        tool(give)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "annotation", [dict[tuple[int, int], int], dict[Pair, int], dict[Node, int], Callable[[], int], Unwritable, Odd]
)
def test_an_input_that_json_cannot_hold_is_refused_at_definition(annotation: Any) -> None:
    def take(given: Any) -> str:
        """Take a value."""
        return ""

    take.__annotations__["given"] = annotation

    with pytest.raises(ConfigurationError, match="agent take takes"):
        agent(take)
    with pytest.raises(ConfigurationError, match="tool take takes"):
        tool(take)


class Offer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    amount: int = Field(ge=0, alias="Amount")
    tags: list[str] = []
    file: Annotated[str, AfterValidator(lambda text: pathlib.Path(text))] = "a"
    least: int = 0
    inner: Offer | None = None
    data: Any = None

    @field_validator("tags", mode="before")
    @classmethod
    def _split(cls, given: str) -> list[str]:
        return given.split(",")  # fails for a list

    @model_validator(mode="after")
    def _is_enough(self) -> Offer:
        if self.amount < self.least:
            raise ValueError("too little")
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return self.amount * 2

    @cached_property
    def cached(self) -> int:
        return 1


def offer(**changes: Any) -> Offer:
    made = Offer.model_validate({"Amount": 5, "tags": "a,b"})
    assert made.cached == 1
    for name, value in changes.items():
        setattr(made, name, value)
    return made


class Kept(TypedDict):
    offer: Offer


def construct(kind: Any, *roots: Any, **held: Any) -> Any:
    """Make an instance without a check."""
    return kind.model_construct(*roots, **held)


def own_child() -> Node:
    node = Node()
    node.below.append(node)
    return node


CHANGED: dict[str, tuple[Any, Any]] = {
    "a field": (Offer, offer(amount=-1)),
    "a field's type": (Offer, offer(amount="many")),
    "a list that grew": (Offer, offer(tags=["a", 1])),
    "an invariant of two fields": (Offer, offer(least=6)),
    "a model within": (Offer, offer(inner=offer(amount=-1))),
    "a model in a field of any type": (Offer, offer(data=[{"x": offer(amount=-1)}])),
    "NaN in a field of any type": (Offer, offer(data=[float("nan")])),
    "a model in a list": (list[Offer], [offer(), offer(amount=-1)]),
    "a model in a dict": (dict[str, Offer | None], {"a": offer(amount=-1)}),
    "a model in a TypedDict": (Kept, {"offer": offer(amount=-1)}),
    "a model where nothing is declared": (Any, {"offers": (offer(amount=-1),)}),
    "constructed": (Offer, construct(Offer, amount="x")),
    "constructed without its fields": (Offer, construct(Offer)),
    "copied with an update": (Offer, offer().model_copy(update={"amount": None})),
    "a dataclass": (Plain, Plain("much")),  # type: ignore[arg-type]
    "a dataclass of pydantic": (Checked, Checked.__new__(Checked)),
    "a generic": (Wrapped[int], construct(Wrapped[int], value="x")),
    "a root model": (RootModel[list[int]], construct(RootModel[list[int]], ["x"])),
    "a member of a union": (Node | Offer, offer(amount=-1)),
    "a cycle": (Node, own_child()),
}


@pytest.mark.parametrize(("annotation", "value"), CHANGED.values(), ids=CHANGED)
def test_an_instance_is_checked_as_it_is_sent(annotation: Any, value: Any) -> None:
    with pytest.raises(TaskError) as refused:
        OutputType(annotation, "agent a").to_json(value)

    assert refused.value.kind == "invalid_output"
    assert "many" not in str(refused.value)  # an error never contains the content


def test_a_valid_instance_is_sent_as_it_is_without_running_its_parsers_again() -> None:
    output = OutputType(Offer, "agent a").to_json(offer(amount=7))

    assert output == {
        "Amount": 7, "tags": ["a", "b"], "file": "a", "least": 0, "inner": None, "data": None, "double": 14,
    }  # fmt: skip


def test_a_value_that_pydantic_can_convert_is_sent_converted() -> None:
    assert OutputType(Wrapped[int], "agent a").to_json(construct(Wrapped[int], value="5")) == {"value": 5}


async def test_changed_models_are_refused_as_arguments_and_in_events() -> None:
    ran = []

    @tool
    def take(given: Offer) -> str:
        """Take an offer."""
        ran.append(given)
        return "taken"

    reporter = RecordingReporter()
    context = Context.for_test(reporter=reporter)

    with pytest.raises(TaskError, match=r"bad arguments for take: given\.tags\.1"):
        await context.call(take, given=offer(tags=["a", 1]))
    with pytest.raises(ValueError, match=r"data.offer is a Offer that is not valid"):
        await context.emit("offered", {"offer": offer(amount=-1)})
    assert ran == []


async def test_events_and_progress_carry_what_pydantic_can_write() -> None:
    reporter = RecordingReporter()
    context = Context.for_test(reporter=reporter)

    await context.emit("priced", {"price": Decimal(1), "files": {pathlib.Path("a")}, 3: timedelta(1)})
    await context.emit("counted", 0)
    context.progress("half", part=Fraction(1, 2), at=Plain(Decimal(2)))

    assert [event.data for event in context.events] == [{"price": "1", "files": ["a"], "3": "P1D"}, 0]
    assert reporter.reports[-1].data == {"part": "1/2", "at": {"price": "2", "lasts": "PT1H"}}


SURROGATES: dict[str, tuple[Any, Any, JsonValue]] = {
    "text": (str, "a\ud800b", "a?b"),
    "a list": (list[str], ["\udfff"], ["?"]),
    "a key": (dict[str, int], {"\ud800": 1}, {"\ufffd\ufffd\ufffd": 1}),
    "a model": (Wrapped[str], Wrapped[str].model_construct(value="\ud800"), {"value": "?"}),
    "a model that allows any value": (Wrapped[Any], Wrapped[Any](value={"a": ["\ud800"]}), {"value": {"a": ["?"]}}),
    "a named tuple": (Pair, Pair("\ud800", Decimal(1)), ["?", "1"]),
    "a dataclass": (Any, Plain("\ud800"), {"price": "?", "lasts": "PT1H"}),  # type: ignore[arg-type]
    "nothing declared": (Any, {"a": ("\ud800", {1})}, {"a": ["?", [1]]}),
}


@pytest.mark.parametrize(("annotation", "value", "expected"), SURROGATES.values(), ids=SURROGATES)
def test_half_a_surrogate_pair_in_an_output_is_replaced(annotation: Any, value: Any, expected: JsonValue) -> None:
    output = OutputType(annotation, "agent a").to_json(value)

    assert output == expected
    assert compact_json(output)


def test_a_value_that_is_read_again_equals_the_written_value() -> None:
    for name, (annotation, value, written) in WRITTEN.items():
        if name in ("an iterable", "keys tuple", "dataclass of pydantic", "bytes by a serializer", "InstanceOf"):
            continue
        if annotation in (Any, object):
            continue
        assert InputType[Any](annotation, "agent a").from_json(written) == value or name.startswith("bytes")

"""Parse and evaluate the paths and conditions of a fixed plan, which read the request and the results of tasks.

A path names a value: `match.unpaid.0.amount`, `request.country`, or `item.total` in a task with `for_each`. A condition
compares paths with literals or with other paths. The language has no calls and no arithmetic. An expression is parsed
when a plan is defined, so a misspelled expression never reaches a workflow. Evaluation never fails, because a missing
value is null, and values of different types are not equal and have no order.

    condition  = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation   = ["not"] comparison
    comparison = operand [operator operand]
    operand    = path | number | text | "true" | "false" | "null" | "[" literals "]" | "(" condition ")"
    operator   = "==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not in"
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from pointsman_schemas.strict_json import JsonValue

__all__ = [
    "ITEM",
    "REQUEST",
    "Condition",
    "ConditionText",
    "Lookup",
    "Path",
    "PathText",
    "evaluate",
    "parse_condition",
    "parse_path",
    "read_path",
]

REQUEST = "request"
"""The first name of a path into the request."""
ITEM = "item"
"""The first name of a path into the item of a `for_each`."""

MAX_EXPRESSION_CHARS = 1_000
"""Largest length of an expression, in characters."""
MAX_NESTING = 20
"""Largest depth of nested parentheses and negations. The depth is limited, because the parser is recursive."""

_MAX_SHOWN_CHARS = 80  # number of characters of a rejected text that an error message shows

Path: TypeAlias = tuple[str, ...]
Lookup: TypeAlias = Callable[[Path], JsonValue]
"""Return the value at a path; None for a missing value."""


@dataclass(frozen=True, slots=True)
class _Literal:
    value: JsonValue


@dataclass(frozen=True, slots=True)
class _Value:
    path: Path


@dataclass(frozen=True, slots=True)
class _Not:
    operand: _Node


@dataclass(frozen=True, slots=True)
class _Any:
    operands: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _All:
    operands: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Comparison:
    operator: str
    left: _Node
    right: _Node


_Node: TypeAlias = _Literal | _Value | _Not | _Any | _All | _Comparison


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition.

    Attributes:
        root: The root of the syntax tree.
        paths: The paths that the condition reads, in order and without repetitions.
    """

    root: _Node
    paths: tuple[Path, ...]


_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
_PATH = re.compile(rf"{_NAME}(?:\.(?:{_NAME}|\d+))*")
_INDEX = re.compile(r"[0-9]{1,9}")
_TOKENS = re.compile(
    rf"""\s*(?:
    (?P<number>-?\d+(?:\.\d+)?(?![\w.]))
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<sign>==|!=|<=|>=|<|>|\(|\)|\[|\]|,)
    |(?P<path>{_PATH.pattern})
    )""",
    re.VERBOSE,
)
_WORDS = ("and", "or", "not", "in", "true", "false", "null")
_CONSTANTS: Mapping[str, JsonValue] = {"true": True, "false": False, "null": None}
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


@lru_cache(1024)
def parse_path(text: str) -> Path:
    """Parse a path, such as `invoices.0.total`.

    Args:
        text: The path.

    Returns:
        The names and indexes of the path.

    Raises:
        ValueError: The text is not a path, or is too long.
    """
    if len(text) > MAX_EXPRESSION_CHARS:
        raise ValueError(f"a path has {len(text)} characters; at most {MAX_EXPRESSION_CHARS} are allowed")
    if not _PATH.fullmatch(text) or text in _WORDS:
        shown = text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..."
        raise ValueError(f"{shown!r} is not a path; expected names separated by dots, such as {REQUEST}.country")
    return tuple(text.split("."))


@lru_cache(1024)
def parse_condition(text: str) -> Condition:
    """Parse a condition, such as `match.unpaid > 0 and request.country == "NO"`.

    Args:
        text: The condition.

    Returns:
        The parsed condition.

    Raises:
        ValueError: The text is not a condition. The message names the place of the fault.
    """
    if len(text) > MAX_EXPRESSION_CHARS:
        raise ValueError(f"a condition has {len(text)} characters; at most {MAX_EXPRESSION_CHARS} are allowed")
    parser = _Parser(text)
    root = parser.parse()
    return Condition(root, tuple(dict.fromkeys(_paths(root))))


def read_path(value: JsonValue, path: Sequence[str]) -> JsonValue:
    """Return the value at `path` below `value`.

    Args:
        value: The outermost value.
        path: Names of fields and indexes of lists.

    Returns:
        The value; None if the path leads to no value.
    """
    for name in path:
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def evaluate(condition: Condition, lookup: Lookup) -> bool:
    """Evaluate a condition.

    Args:
        condition: The condition.
        lookup: A function that returns the value at a path.

    Returns:
        True if the condition is true. A value without a comparison is false if it is null, false, 0 or empty. Any other
        value is true.
    """
    return _truth(_evaluate(condition.root, lookup))


def _evaluate(node: _Node, lookup: Lookup) -> JsonValue:
    match node:
        case _Literal(value):
            return value
        case _Value(path):
            return lookup(path)
        case _Not(operand):
            return not _truth(_evaluate(operand, lookup))
        case _Any(operands):
            return any(_truth(_evaluate(each, lookup)) for each in operands)
        case _All(operands):
            return all(_truth(_evaluate(each, lookup)) for each in operands)
        case _Comparison(operator, left, right):
            return _compare(operator, _evaluate(left, lookup), _evaluate(right, lookup))


def _truth(value: JsonValue) -> bool:
    return bool(value)


def _compare(operator: str, left: JsonValue, right: JsonValue) -> bool:
    match operator:
        case "==":
            return _equal(left, right)
        case "!=":
            return not _equal(left, right)
        case "in":
            return _contains(right, left)
        case "not in":
            return not _contains(right, left)
    order = _order(left, right)
    return order is not None and order in _ORDERS[operator]


_ORDERS = {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}


def _order(left: JsonValue, right: JsonValue) -> int | None:
    """Compare two numbers or two texts. Return -1, 0 or 1; None for other values, which have no order."""
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    if isinstance(left, bool) or isinstance(right, bool):
        return None
    if isinstance(left, int | float) and isinstance(right, int | float):
        return (left > right) - (left < right)
    return None


def _equal(left: JsonValue, right: JsonValue) -> bool:
    """Return True for equal JSON values. The values true and 1 are not equal."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return left == right


def _contains(container: JsonValue, value: JsonValue) -> bool:
    match container:
        case list():
            return any(_equal(each, value) for each in container)
        case str() | dict():
            return isinstance(value, str) and value in container
        case _:
            return False


def _paths(node: _Node) -> Iterator[Path]:
    match node:
        case _Value(path):
            yield path
        case _Not(operand):
            yield from _paths(operand)
        case _Any(operands) | _All(operands):
            for each in operands:
                yield from _paths(each)
        case _Comparison(_, left, right):
            yield from _paths(left)
            yield from _paths(right)
        case _Literal():
            pass


class _Parser:
    """Recursive-descent parser of conditions."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._scan())
        self._next = 0
        self._depth = 0

    def parse(self) -> _Node:
        node = self._disjunction()
        if self._next < len(self._tokens):
            raise self._error("the end, `and` or `or`")
        return node

    def _scan(self) -> Iterator[tuple[str, str]]:
        at, end = 0, len(self._text.rstrip())
        while at < end:
            if (found := _TOKENS.match(self._text, at)) is None:
                rest = self._text[at:].strip()[:_MAX_SHOWN_CHARS]
                raise ValueError(f"the condition {self._text!r} cannot be read at {rest!r}")
            kind = found.lastgroup or ""
            word = found[kind]
            yield ("word" if word in _WORDS else kind), word
            at = found.end()

    def _disjunction(self) -> _Node:
        operands = [self._conjunction()]
        while self._take("or"):
            operands.append(self._conjunction())
        return operands[0] if len(operands) == 1 else _Any(tuple(operands))

    def _conjunction(self) -> _Node:
        operands = [self._negation()]
        while self._take("and"):
            operands.append(self._negation())
        return operands[0] if len(operands) == 1 else _All(tuple(operands))

    def _negation(self) -> _Node:
        if not self._take("not"):
            return self._comparison()
        self._descend()
        node = _Not(self._negation())
        self._depth -= 1
        return node

    def _comparison(self) -> _Node:
        left = self._operand()
        operator = next((each for each in _COMPARISONS if self._peek() == ("sign", each)), "")
        if operator:
            self._next += 1
        elif self._take("in"):
            operator = "in"
        elif self._peek() == ("word", "not") and self._tokens[self._next + 1 :][:1] == [("word", "in")]:
            self._next += 2
            operator = "not in"
        else:
            return left
        return _Comparison(operator, left, self._operand())

    def _operand(self) -> _Node:
        kind, word = self._peek()
        if (kind, word) == ("sign", "("):
            self._next += 1
            self._descend()
            node = self._disjunction()
            self._depth -= 1
            self._expect(")")
            return node
        if kind == "path":
            self._next += 1
            return _Value(parse_path(word))
        return _Literal(self._literal())

    def _literal(self) -> JsonValue:
        kind, word = self._peek()
        if (kind, word) == ("sign", "["):
            return self._list()
        self._next += 1
        match kind:
            case "number":
                return float(word) if "." in word else int(word)
            case "text":
                return _unquote(word)
            case "word" if word in _CONSTANTS:
                return _CONSTANTS[word]
        self._next -= 1
        raise self._error("a path, a number, a text in quotes, true, false, null or a list of these")

    def _list(self) -> JsonValue:
        self._next += 1
        values: list[JsonValue] = []
        while self._peek() != ("sign", "]"):
            if values:
                self._expect(",")
            if self._peek() == ("sign", "["):
                raise self._error("a list without lists in it")
            values.append(self._literal())
        self._next += 1
        return values

    def _descend(self) -> None:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise ValueError(f"the condition {self._text!r} is nested deeper than {MAX_NESTING}")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("end", "")

    def _take(self, word: str) -> bool:
        if self._peek() != ("word", word):
            return False
        self._next += 1
        return True

    def _expect(self, sign: str) -> None:
        if self._peek() != ("sign", sign):
            raise self._error(repr(sign))
        self._next += 1

    def _error(self, expected: str) -> ValueError:
        word = self._peek()[1]
        seen = f"has {word!r}" if word else "ends"
        return ValueError(f"the condition {self._text!r} {seen} where {expected} is expected")


def _unquote(word: str) -> str:
    if word[0] == "'":
        word = '"' + word[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
    try:
        text: str = json.loads(word)
    except ValueError:
        raise ValueError(f"the text {word} has an unknown escape; write \\\\ for a backslash") from None
    return text


def _checked_path(text: str) -> str:
    parse_path(text)
    return text


def _checked_condition(text: str) -> str:
    if text:
        parse_condition(text)
    return text


PathText: TypeAlias = Annotated[str, AfterValidator(_checked_path)]
"""A path in its written form."""
ConditionText: TypeAlias = Annotated[str, AfterValidator(_checked_condition)]
"""A condition in its written form; empty for no condition."""

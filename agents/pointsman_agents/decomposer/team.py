"""Define the decomposer, a team that splits an arithmetic expression and gives the parts to itself.

The work is arithmetic, because a wrong number shows an error of splitting or joining at once. The planner is the
splitter. If at least one term of the outermost operation is itself an operation, each term becomes a task for the
decomposer team. A team with three teams above it may not use further teams. So its planner gives the whole expression
to the solver.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Final

from pydantic import BaseModel

from pointsman import (
    Context,
    Limits,
    Plan,
    PlanAndExecute,
    PlannedTask,
    PlannerInput,
    RefusedError,
    Role,
    Synthesis,
    SynthesizerInput,
    Team,
    agent,
)

__all__ = ["SAMPLE_REQUEST", "joiner", "solver", "splitter", "team"]

SAMPLE_REQUEST: Final = "((3 + 4) * (10 - 2) + (6 * 7 - 2)) / ((1 + 2) * (5 - 3))"

team = Team(
    name="decomposer",
    description="Computes by splitting: each part is a task of its own",
    skills=("arithmetic",),
    agents=("decomposer", "solver"),
    strategy=PlanAndExecute(planner="splitter", synthesizer="joiner"),
    limits=Limits(deadline=120.0, task_timeout=100.0, nesting=3),
)

_OPERATORS: Final[dict[type[ast.operator], tuple[str, Callable[[float, float], float]]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
}
_BY_SIGN: Final = dict(_OPERATORS.values())
_MAX_EXPRESSION_CHARS: Final = 1_000  # largest length of a request; enough for any expression that a person writes


class Sum(BaseModel):
    expression: str


@agent(name="splitter", description="Splits an expression at its outermost operation", role=Role.PLAN)
async def splitter(asked: PlannerInput) -> Plan:
    """Plan one task for each side of the outermost operation, or one task for the solver."""
    request = {"request": asked.request} if isinstance(asked.request, str) else asked.request
    text = str(request.get("expression") or request.get("request"))
    try:
        node = _parse(text)
    except RefusedError as error:
        return Plan(cannot=str(error))
    below = any(item.name == team.name for item in asked.agents)
    if isinstance(node, ast.BinOp) and below and not (_is_operand(node.left) and _is_operand(node.right)):
        sides = [("left", ast.unparse(node.left)), ("right", ast.unparse(node.right))]
        tasks = tuple(
            PlannedTask(id=side, agent=team.name, intent=f"Compute {part}", input={"expression": part})
            for side, part in sides
        )
        return Plan(goal=f"Compute {text}", tasks=tasks, final_instruction=_OPERATORS[type(node.op)][0])
    # Both sides are numbers, or the planner may not use the decomposer team.
    whole = PlannedTask(id="whole", agent="solver", intent=f"Compute {text}", input={"expression": text})
    return Plan(goal=f"Compute {text}", tasks=(whole,))


@agent(name="solver", description="Computes an expression whole", skills=["arithmetic"])
async def solver(given: Sum) -> str:
    """Compute the whole expression."""
    return f"{_value(_parse(given.expression)):.10g}"


@agent(name="joiner", description="Joins the two sides of an operation", role=Role.SYNTHESIZE)
async def joiner(asked: SynthesizerInput, context: Context) -> Synthesis:
    """Apply the operation to the results of the two sides. If a side has failed, answer with the reason."""
    if asked.gaps:
        return Synthesis(answer=f"It cannot be computed: {asked.gaps[0].reason}")
    told = [str(report.output) for report in context.results.values()]
    try:
        values = [float(each) for each in told]
        result = values[0] if len(values) == 1 else _apply(asked.final_instruction, *values)
    except ValueError:
        return Synthesis(answer=next(each for each in told if not _is_number(each)))
    except RefusedError as error:
        return Synthesis(answer=f"It cannot be computed: {error}")
    return Synthesis(answer=f"{result:.10g}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parse(text: str) -> ast.expr:
    try:
        node = ast.parse(text[: _MAX_EXPRESSION_CHARS + 1].strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise RefusedError(f"{text[:80]!r} is not an expression of numbers, + - * / and brackets") from None
    if len(text) > _MAX_EXPRESSION_CHARS or not _check_node(node):
        raise RefusedError(
            f"{text[:80]!r} has more in it than numbers, + - * / and brackets, or is longer than "
            f"{_MAX_EXPRESSION_CHARS} characters"
        )
    return node


def _check_node(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(left=left, op=sign, right=right):
            return type(sign) in _OPERATORS and _check_node(left) and _check_node(right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _check_node(operand)
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
    return False


def _is_operand(node: ast.expr) -> bool:
    return not isinstance(node, ast.BinOp)


def _value(node: ast.expr) -> float:
    match node:
        case ast.BinOp(left=left, op=sign, right=right):
            return _apply(_OPERATORS[type(sign)][0], _value(left), _value(right))
        case ast.UnaryOp(operand=operand):
            return -_value(operand)
        case ast.Constant(value=int() | float() as number):
            return float(number)
    raise RefusedError(f"{ast.unparse(node)} cannot be computed")


def _apply(sign: str, left: float, right: float) -> float:
    try:
        return _BY_SIGN[sign](left, right)
    except (ZeroDivisionError, OverflowError) as error:
        raise RefusedError(f"{left:.10g} {sign} {right:.10g} is a {error}") from None

"""Home-automation agents and the offline model's answers about them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, JsonValue

from pointsman.llm.offline.model import OfflineModel
from pointsman.llm.prompt import write_task
from pointsman.ports.model import ModelReply, ModelRequest, Turn
from pointsman_schemas.events import TaskReport
from pointsman_schemas.role_io import AvailableAgent

KITCHEN = AvailableAgent(name="kitchen", description="Cooks meals: soup, bread, dinner", skills=("cooking", "recipes"))
GARDEN = AvailableAgent(
    name="garden", description="Grows vegetables and flowers", skills=("planting",), examples=("Water the roses",)
)
GARAGE = AvailableAgent(
    name="garage",
    description="Repairs bicycles and cars",
    input_schema={
        "type": "object",
        "properties": {
            "plate": {"type": "string", "pattern": r"^[A-Z]{2}-\d{3}$"},
            "budget": {"type": "number"},
            "complaint": {"type": "string"},
        },
        "required": ["plate", "complaint"],
    },
)
HOME_AGENTS = (KITCHEN, GARDEN, GARAGE)


async def ask_model(
    data: BaseModel, output: type[BaseModel], name: str, results: Sequence[TaskReport] = ()
) -> ModelReply:
    turn = Turn("user", write_task(name, data.model_dump(mode="json"), results))
    return await OfflineModel().complete(
        ModelRequest("offline", "x", (turn,), output_schema=output.model_json_schema(), output_name=name)
    )


def report(task_id: str, agent: str, intent: str, output: JsonValue = None, status: str = "succeeded") -> TaskReport:
    return TaskReport(task_id=task_id, agent=agent, intent=intent, status=status, output=output)

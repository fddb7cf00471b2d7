"""A code generator of another project makes models from the schemas. These models read the messages."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from datamodel_code_generator import InputFileType, generate
from datamodel_code_generator.enums import DataModelType
from pydantic import BaseModel, ValidationError

ROOT = Path(__file__).parents[3]
LOGS = sorted((ROOT / "tests" / "replay").glob("*.jsonl"))


def generated(document: Path, kind: InputFileType, target: Path) -> ModuleType:
    """Generate models from a document, and import them."""
    generate(
        document,
        input_file_type=kind,
        output=target,
        output_model_type=DataModelType.PydanticV2BaseModel,
        formatters=[],
        use_annotated=True,
    )
    return importlib.import_module(target.stem)


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Yield the models of the AsyncAPI document, which refers to all files of schemas/json."""
    folder = tmp_path_factory.mktemp("generated")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield generated(ROOT / "schemas/json/asyncapi.yaml", InputFileType.AsyncAPI, folder / "generated_wire")
    for name in [name for name in sys.modules if name.startswith("generated_wire")]:
        del sys.modules[name]


def is_kept(model: type[BaseModel], given: Any) -> bool:
    """Return True if a model reads a value, and writes the same value again."""
    return bool(model.model_validate(given).model_dump(mode="json", by_alias=True, exclude_unset=True) == given)


def outcomes() -> list[dict[str, Any]]:
    entries = [entry for log in LOGS for line in log.read_text().splitlines() for entry in json.loads(line)["entries"]]
    return [entry["outcome"] for entry in entries if entry["kind"] == "workflow_ended"]


def test_generated_models_read_the_recorded_outcomes(wire: ModuleType) -> None:
    found = outcomes()

    assert len(found) >= len(LOGS)
    assert [each for each in found if not is_kept(wire.OutcomePayload, each)] == []


def test_generated_models_read_the_recorded_logs(wire: ModuleType) -> None:
    commits = [json.loads(line) for log in LOGS for line in log.read_text().splitlines()]

    assert commits
    assert [each for each in commits if not is_kept(wire.CommitPayload, each)] == []


def test_generated_models_refuse_what_the_schemas_refuse(wire: ModuleType) -> None:
    outcome = outcomes()[0]

    for wrong in ({"status": "done"}, {"gaps": "none"}, {"workflow_id": 7}):
        with pytest.raises(ValidationError):
            wire.OutcomePayload.model_validate({**outcome, **wrong})


# The generated models have plain texts for base64.
@pytest.mark.filterwarnings("ignore:format of 'base64' not understood")
def test_generated_models_of_the_http_api_read_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    api = generated(ROOT / "docs/openapi.json", InputFileType.OpenAPI, tmp_path / "generated_api.py")
    schedule = {"name": "report", "team": "crew", "input": "go", "cron": "0 9 * * 1-5"}

    assert is_kept(api.ScheduleRequest, schedule)
    with pytest.raises(ValidationError):
        api.ScheduleRequest.model_validate({**schedule, "overlap": "sometimes"})

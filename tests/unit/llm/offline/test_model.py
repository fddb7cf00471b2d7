"""The offline model selects agents and joins their results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from support.house import HOME_AGENTS, KITCHEN, ask_model, report

from pointsman.llm.offline.words import OFFLINE_NOTE
from pointsman_schemas.events import AttemptError, Gap, TaskReport
from pointsman_schemas.plan import Selection
from pointsman_schemas.role_io import AvailableAgent, ClassifierInput, Synthesis, SynthesizerInput


async def select(request: str, agents: tuple[AvailableAgent, ...] = HOME_AGENTS) -> Selection:
    reply = await ask_model(ClassifierInput(request=request, agents=agents), Selection, "selection")
    return Selection.model_validate(reply.data)


async def answer(data: SynthesizerInput, results: Sequence[TaskReport] = ()) -> str:
    return Synthesis.model_validate((await ask_model(data, Synthesis, "synthesis", results)).data).answer


async def test_equal_agents_are_selected_once_with_full_confidence() -> None:
    def cooks(*names: str) -> tuple[AvailableAgent, ...]:
        return tuple(AvailableAgent(name=name, description="Cooks meals", skills=("cooking",)) for name in names)

    (one,) = (await select("Cook soup", cooks("here"))).agents
    (two,) = (await select("Cook soup", cooks("here", "there"))).agents

    assert (one.agent, one.skill) == ("here", "")
    assert (two.agent, two.skill) == ("", "cooking")
    assert two.confidence == one.confidence


async def test_a_clear_request_has_one_sure_agent_and_several_domains_have_several() -> None:
    one, two = await select("Cook some soup"), await select("Cook soup and repair my bicycle")

    assert [(found.agent, found.confidence) for found in one.agents] == [("kitchen", 0.95)]
    assert {found.agent: found.intent for found in two.agents} == {
        "kitchen": "Cook soup",
        "garage": "repair my bicycle",
    }
    assert one.question == ""


async def test_an_unclear_request_gets_a_question_instead_of_a_guess() -> None:
    selection = await select("Tell me something about Latin grammar")

    assert selection.agents == ()
    assert "Cooks meals" in selection.question


async def test_a_request_that_fits_two_agents_has_less_confidence_in_each() -> None:
    twins = (KITCHEN, AvailableAgent(name="canteen", description="Cooks soup"))
    reply = await ask_model(ClassifierInput(request="Cook soup", agents=twins), Selection, "selection")

    confidences = [found.confidence for found in Selection.model_validate(reply.data).agents]
    assert len(confidences) == 2
    assert all(0.2 < confidence < 0.7 for confidence in confidences)


async def test_offline_answer_has_every_result_and_gap() -> None:
    results = [
        report("t1", "kitchen", "cook soup", "The soup is ready."),
        report("t2", "garden", "water the roses", {"summary": "The roses are wet.", "litres": 4}),
        report("t3", "garage", "repair the car", status="failed"),
    ]
    gaps = (Gap(task_id="t3", agent="garage", reason="no worker took it within 5 s"),)
    text = await answer(SynthesizerInput(request="do it all", gaps=gaps, limit="the deadline of 60 s passed"), results)

    for said in ("The soup is ready.", "The roses are wet.", "repair the car", "no worker took it within 5 s", "60 s"):
        assert said in text
    assert text.endswith(OFFLINE_NOTE)
    assert "kitchen" not in text


async def test_rejection_by_a_person_is_told_to_the_caller_with_the_reason() -> None:
    said = "it was not allowed: not today"
    gaps = (Gap(task_id="t1", agent="till", reason=said),)
    done = report("t1", "till", "refund it", status="failed")
    results = [done.model_copy(update={"error": AttemptError(kind="rejected", message=said)})]

    text = await answer(SynthesizerInput(request="refund it", gaps=gaps), results)

    assert "This could not be done: refund it. The reason: it was not allowed: not today." in text


async def test_exception_text_is_hidden_from_the_caller() -> None:
    crash = AttemptError(kind="handler_error", message="ValueError: the shop database is down")
    refusal = AttemptError(kind="refused", message="the order number is missing")
    results = [
        report("t1", "kitchen", "serve the request", status="failed").model_copy(update={"error": crash}),
        report("t2", "garden", "serve the request", status="failed").model_copy(update={"error": refusal}),
    ]
    gaps = tuple(
        Gap(task_id=done.task_id, agent=done.agent, reason=done.error.message) for done in results if done.error
    )

    text = await answer(SynthesizerInput(request="do it all", gaps=gaps), results)

    assert "by kitchen: serve the request. The reason: something went wrong on our side." in text
    assert "by garden: serve the request. The reason: the order number is missing." in text
    assert "ValueError" not in text


async def test_empty_answer_explains_that_no_help_was_possible() -> None:
    text = await answer(SynthesizerInput(request="write a poem", limit="no agent here can help"))

    assert text.startswith("I could not help with this request: 'write a poem'.")
    assert "no agent here can help" in text


async def test_final_instruction_is_printed_and_worker_notes_are_not_repeated() -> None:
    results = [
        report("t1", "kitchen", "cook", f"Soup.\n{OFFLINE_NOTE}"),
        report("t2", "garden", "grow", f"Peas.\n{OFFLINE_NOTE}"),
    ]
    told = "Tell the caller that no agent here can help with: Latin."
    text = await answer(SynthesizerInput(request="x", final_instruction=told), results)

    assert text == f"Soup.\n\nPeas.\n\nNo agent here can help with: Latin.\n\n{OFFLINE_NOTE}"


def test_no_provider_s_sdk_is_loaded_until_it_is_used() -> None:
    code = (
        "import sys, pointsman.authoring.llm_agent, pointsman.llm.openai, pointsman.llm.anthropic\n"
        "from pointsman_agents.planner import planner\n"
        "planner.card\n"
        "print([name for name in ('openai', 'anthropic', 'httpx2', 'nats') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        env={"OPENAI_API_KEY": "sk-test"},
    )

    assert ran.stdout.strip() == "[]"

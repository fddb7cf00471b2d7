"""Errors of the OpenAI-compatible API name the id that the client gave, and the paths that exist."""

from __future__ import annotations

from collections.abc import Sequence

from support.asgi import Answer
from support.memory_gateway import gateway

PATHS = (
    "GET /v1/models, GET /v1/models/{model}, POST /v1/chat/completions, POST /v1/responses, "
    "GET /v1/responses/{response_id}, POST /v1/responses/{response_id}/cancel"
)


async def answers(requests: Sequence[str]) -> dict[str, Answer]:
    async with gateway() as door:
        return {each: await door.send("bob", *each.split()) for each in requests}


async def test_unknown_response_is_named_by_the_given_id() -> None:
    found = await answers(
        [
            "GET /v1/responses/resp_x",
            "GET /v1/responses/resp_x?stream=true",
            "POST /v1/responses/resp_x/cancel",
        ]
    )

    assert {(answer.status, answer.json["error"]["message"]) for answer in found.values()} == {
        (404, "you have no response 'resp_x'; the id of a response is in its field `id`")
    }


async def test_unknown_path_of_openai_lists_the_known_paths() -> None:
    found = await answers(
        [
            "POST /v1/embeddings",
            "POST /v1/completions",
            "POST /v1/audio/speech",
            "POST /chat/completions",
            "POST /v1/v1/chat/completions",
            "GET /models",
            "GET /v1/responses/resp_x/input_items",
            "POST /v1/chat/completion",
        ]
    )

    for sent, answer in found.items():
        error, path = answer.json["error"], sent.split()[1]
        assert (answer.status, error["type"], error["code"]) == (404, "not_found_error", "not_found")
        assert error["message"] == f"there is no path {path}; the paths of this API are {PATHS}"


async def test_wrong_method_is_answered_with_the_allowed_methods() -> None:
    found = await answers(["GET /v1/chat/completions", "DELETE /v1/responses/resp_x", "DELETE /v1/workflows"])
    chat, response, workflows = found.values()

    assert {answer.status for answer in found.values()} == {405}
    assert chat.json["error"]["message"] == "GET is not allowed for /v1/chat/completions; use POST"
    assert response.json["error"]["message"] == "DELETE is not allowed for /v1/responses/resp_x; use GET"
    assert workflows.json["detail"] == "DELETE is not allowed for /v1/workflows; use GET or POST"


async def test_unknown_path_of_rest_is_a_problem() -> None:
    (answer,) = (await answers(["GET /v1/workflow"])).values()

    assert (answer.status, answer.json["detail"]) == (
        404, "there is no path /v1/workflow; GET /openapi.json lists the paths",
    )  # fmt: skip

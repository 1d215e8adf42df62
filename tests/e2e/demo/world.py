"""Stack, reference answers and checks of the demonstration."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from registry.tools.devstack.engine_environment import find_engine_python, vllm_environment
from registry.tools.devstack.processes import spawn, wait_until
from registry.tools.devstack.stack import Stack, is_ready, last_words
from registry.tools.devstack.stack_file import EngineKind, StackError
from registry.tools.devstack.stack_parts import BASE_MODEL, POOL, Role, StackPart, engine_command, our_environment
from registry.tools.devstack.stack_verbs import cli
from tests.e2e.demo.answers import (
    BASE,
    PROMPTS,
    AnswerRefused,
    EngineAnswer,
    Reference,
    ask,
    reference_of,
)
from tests.support.with_torch import reference_command

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
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=vllm_environment(), timeout=_REFERENCE_SECONDS
    )
    if done.returncode != 0:
        raise StackError(f"the reference could not be computed: {done.stderr.strip()[-500:]}")
    return reference_of(json.loads(done.stdout))


def _by_scratch_engine(stack: Stack, adapters: Mapping[str, Path], port: int) -> Reference:
    command = engine_command(stack.folder, EngineKind.SIM, port)
    part = StackPart(_SCRATCH, Role.ENGINE, f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/health")
    log = stack.folder.log(_SCRATCH)
    process = spawn(command.arguments, command.environment, log)
    try:
        if not wait_until(lambda: is_ready(part) or not process.is_running(), 60) or not process.is_running():
            raise StackError(f"the reference engine did not start; {last_words(log)}")
        return _asked(part, adapters)
    finally:
        process.kill()


def _asked(part: StackPart, adapters: Mapping[str, Path]) -> Reference:
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


def _sure(answer: EngineAnswer | AnswerRefused) -> EngineAnswer:
    if isinstance(answer, AnswerRefused):
        raise StackError(f"the reference engine answered {answer.status}: {answer.message}")
    return answer


CONVERGE_SECONDS = 120.0

Say = Callable[[str], None]


class StepFailed(Exception):
    """A step did not hold; the message says what was seen and what was expected."""


@dataclass
class World:
    """Everything that a step works on.

    Attributes:
        stack: all processes.
        reference: the right answers by reference name.
        say: prints one line.
        served: which reference each served name should answer like by now.
    """

    stack: Stack
    reference: Reference
    say: Say
    served: dict[str, str] = field(default_factory=dict)
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=60, trust_env=False))

    @property
    def replicas(self) -> tuple[str, ...]:
        return self.stack.layout.replicas

    def engine(self, replica: str) -> str:
        """URL of a replica's engine."""
        return self.stack.layout.url(f"engine-{replica}")

    def adapter(self, name: str) -> str:
        """URI of an adapter's files."""
        return (self.stack.folder.adapters / name).as_uri()

    def run(self, *arguments: str) -> str:
        """Runs the command line, shows it with what it prints, and returns that.

        Raises:
            StepFailed: it did not end with 0.
        """
        self.say(f"   $ loraplane {' '.join(arguments)}")
        done = cli(self.stack, *arguments)
        for line in done.stdout.splitlines():
            self.say(f"     {line}")
        require(done.returncode == 0, f"loraplane ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Runs the command line beside the body, which is over before it need be; ended at the latest with the body."""
        self.say(f"   $ loraplane {' '.join(arguments)}   (and meanwhile …)")
        address = self.stack.layout.address("admin")
        command = [sys.executable, "-m", "registry.cli.main", "--admin", address, *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=our_environment()) as process:
            try:
                yield process
            finally:
                process.kill()

    def listing(self, replica: str) -> dict[str, str]:
        """Adapters that an engine lists, with their paths; empty while it does not answer."""
        try:
            reply = self.http.get(f"{self.engine(replica)}/v1/models")
        except httpx.TransportError:
            return {}
        return {card["id"]: card["root"] for card in reply.json()["data"] if card.get("parent")}

    def readiness(self, replica: str) -> int:
        """Status of the sidecar's /readyz; 0 while it does not answer."""
        try:
            return self.http.get(f"{self.stack.layout.url(f'sidecar-{replica}')}/readyz").status_code
        except httpx.TransportError:
            return 0

    def status(self, replica: str) -> dict[str, Any]:
        """What a sidecar says of its replica."""
        found: dict[str, Any] = json.loads(self.http.get(f"{self.stack.layout.url(f'sidecar-{replica}')}/status").text)
        return found

    def run_fails(self, *arguments: str) -> bool:
        """True if the command line does not end with 0; nothing is shown."""
        return cli(self.stack, *arguments).returncode != 0

    def lists_all(self, replica: str) -> bool:
        """True if the engine lists exactly what should be served."""
        return set(self.listing(replica)) == set(self.served)

    def check_answers(self, replicas: Iterable[str] | None = None) -> None:
        """Asks every replica everything, and compares with the reference.

        Raises:
            StepFailed: an answer is missing or differs.
        """
        names = {BASE_MODEL: BASE, **self.served}
        asked = [(r, name, prompt) for r in replicas or self.replicas for name in names for prompt in PROMPTS]
        worst = max(self._distance(r, name, prompt, names[name]) for r, name, prompt in asked)
        where = ", ".join(replicas or self.replicas)
        self.say(
            f"   {len(asked)} answers of {where} ({', '.join(names)}) equal the reference; "
            f"logprobs differ by {worst:.1e} at most"
        )

    def _distance(self, replica: str, name: str, prompt: str, like: str) -> float:
        answer, right = ask(self.http, self.engine(replica), name, prompt), self.reference[like][prompt]
        if isinstance(answer, AnswerRefused):
            raise StepFailed(f"{replica} refused {name!r}: {answer.status} {answer.message}")
        require(answer.is_like(right), f"{replica} answers {name!r} to {prompt!r} with {answer}, expected {right}")
        return answer.distance(right)


def require(held: bool, otherwise: str) -> None:
    """Raises StepFailed unless `held`."""
    if not held:
        raise StepFailed(otherwise)


def await_(check: Callable[[], bool], what: str) -> None:
    """Waits until `check` holds.

    Raises:
        StepFailed: it did not in time.
    """
    require(wait_until(check, CONVERGE_SECONDS), f"not within {CONVERGE_SECONDS:g} s: {what}")


def text_of(answer: EngineAnswer) -> str:
    """The tokens as text: in the tiny model each is a byte."""
    return "".join(chr(token) if 32 <= token < 127 else "·" for token in answer.tokens)


def manifests(world: World, sources: dict[str, str]) -> str:
    """YAML documents for adapters by name, each with its source."""
    return "---\n".join(
        f"apiVersion: loraplane/v1\nkind: Adapter\nmetadata: {{name: {name}, pool: {POOL}}}\n"
        f'spec: {{source: {{uri: "{world.adapter(source)}"}}}}\n'
        for name, source in sources.items()
    )

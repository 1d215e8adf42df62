r"""A training loop in the manner of GRPO: each step publishes a policy, samples from it on every replica, and learns.

    loraplane dev up           # its table says where the admin service and the engines are
    python docs/examples/training_loop.py --admin 127.0.0.1:PORT --engine http://127.0.0.1:PORT \
      --engine http://127.0.0.1:PORT --folder .loraplane/adapters/policies

Learning from a sample is only right if it is known which weights it came from. `publish` returns when every replica
serves the new version, and an engine's listing names the files behind a model, so each sample is kept together with
the one version that made it, or not at all.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from loraplane import Published, Registry
from registry.tools.devstack.tiny_adapters import write_adapter


@dataclass(frozen=True)
class Sample:
    """A completion, and where the weights were that made it."""

    text: str
    weights: str


def train(folder: Path, step: int, samples: Sequence[Sample]) -> Path:
    """Stands for the optimizer: writes the policy after `step`, each to a place of its own."""
    policy = folder / f"step-{step}"
    write_adapter(policy, seed=f"{step}: {sorted(sample.text for sample in samples)}")
    return policy


def weights_of(engine: httpx.Client, model: str) -> str:
    """Where the files are that an engine serves under a name."""
    cards = engine.get("/v1/models").raise_for_status().json()["data"]
    return next(str(card["root"]) for card in cards if card["id"] == model)


def sample(engine: httpx.Client, model: str, prompt: str) -> Sample:
    """One completion of known weights.

    Raises:
        RuntimeError: the weights changed meanwhile, so the sample is of nobody knows which.
    """
    before = weights_of(engine, model)
    order = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0}
    text = engine.post("/v1/completions", json=order).raise_for_status().json()["choices"][0]["text"]
    if weights_of(engine, model) != before:
        raise RuntimeError(f"{model} changed while it was sampled")
    return Sample(text, before)


def run(registry: Registry, engines: Sequence[str], model: str, pool: str, folder: Path, steps: int) -> list[Published]:
    """Trains for some steps; every sample of a step is of the version that the step published."""
    published: list[Published] = []
    samples: list[Sample] = []
    seen: set[str] = set()
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(base_url=url, timeout=60, trust_env=False)) for url in engines]
        for step in range(steps):
            published.append(registry.publish(train(folder, step, samples), model, pool))
            samples = [sample(client, model, "Hello") for client in clients]
            weights = {one.weights for one in samples}
            assert len({Path(path).name for path in weights}) == 1, f"replicas sampled different weights: {weights}"
            assert not weights & seen, f"samples of step {step} are of an earlier version"
            seen |= weights
            print(f"step {step}: generation {published[-1].generation}, {len(samples)} samples of one version")
    return published


def main() -> None:
    """Reads its flags and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--admin", required=True, metavar="HOST:PORT")
    parser.add_argument("--engine", required=True, action="append", metavar="URL", help="one of each replica")
    parser.add_argument("--folder", required=True, type=Path, help="for policies; sidecars must be allowed to read it")
    parser.add_argument("--name", default="acme/policy")
    parser.add_argument("--pool", default="dev")
    parser.add_argument("--steps", type=int, default=3)
    told = parser.parse_args()
    with Registry(told.admin) as registry:
        run(registry, told.engine, told.name, told.pool, told.folder.absolute(), told.steps)


if __name__ == "__main__":
    main()

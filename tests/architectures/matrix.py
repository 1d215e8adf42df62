"""The matrix: makes models and adapters, gives them to our check and to the engine, and compares."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from registry.lora.base import BaseModules
from registry.lora.base_directory import read_base
from registry.lora.check import AdapterVerdict, examine
from registry.lora.directory import open_directory
from registry.lora.findings import UnfitAdapter
from registry.lora.policy import AdapterLimits, Policy
from registry.tools.devstack.engine_environment import find_engine_python
from sidecar.artifacts.store import LocalStore, ReadingEngine
from sidecar.artifacts.types import ArtifactRef
from sidecar.engines.vllm.plugin_calls import read_coverage
from sidecar.vllm_plugin import coverage as plugin_coverage
from tests.architectures.families import Family
from tests.architectures.verdicts import Judged, answer_of, distance, verdict_of

FOLDER = Path(__file__).parent
MAKE_SECONDS, SERVE_SECONDS = 7200, 1900
_RAW, _PREPARED = "raw ", "prepared "


@dataclass(frozen=True)
class Made:
    """One family's folder: the model, the adapters, and what transformers and PEFT answer."""

    family: Family
    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def told(self) -> dict[str, Any]:
        """What the script that made it wrote."""
        told: dict[str, Any] = json.loads((self.folder / "made.json").read_text())
        return told

    @property
    def served(self) -> dict[str, Any]:
        """What the engine made of it, as far as it was asked."""
        path = self.folder / "served.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def adapters(self) -> dict[str, Path]:
        """By kind."""
        return {kind: self.folder / "adapters" / kind for kind in self.told["answers"] if kind}


def make(families: Sequence[Family], folder: Path) -> list[Made]:
    """Makes what is not there yet, all in one process."""
    missing = {
        one.name: [one.model_type, one.config] for one in families if not (folder / one.name / "made.json").exists()
    }
    if missing:
        _run("make_models.py", ["--out", str(folder)], missing, MAKE_SECONDS)
    return [Made(one, folder / one.name) for one in families]


def serve(all_made: Sequence[Made]) -> None:
    """Gives the engine what it was not given yet, one model after another."""
    orders = [order for made in all_made if "error" not in made.told and (order := _order(made)) is not None]
    if orders:
        arguments = ["--coverage", plugin_coverage.__file__]
        _run("serve_adapters.py", arguments, orders, SERVE_SECONDS * len(orders))


def _run(script: str, arguments: Sequence[str], told: object, seconds: float) -> None:
    """Runs a script of the engine environment."""
    command = [str(find_engine_python()), "-P", str(FOLDER / script), *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    done = subprocess.run(
        command, input=json.dumps(told), env=inherited, text=True, capture_output=True, timeout=seconds, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{script} ended with {done.returncode}:\n{done.stderr[-4000:]}")


def _order(made: Made) -> dict[str, Any] | None:
    """What the engine is to be asked; None: it was asked that."""
    adapters = {_RAW + kind: path for kind, path in made.adapters().items()}
    adapters |= {_PREPARED + kind: path for kind, path in asyncio.run(_prepared(made)).items()}
    files = [(name, (path / "adapter_model.safetensors").read_bytes()) for name, path in adapters.items()]
    of = hashlib.sha256(b"".join(name.encode() + content for name, content in files)).hexdigest()
    if made.served.get("of") == of:
        return None
    told = made.told
    out = made.folder / "served.json"
    out.unlink(missing_ok=True)
    paths = {name: str(path) for name, path in adapters.items()}
    return {
        "of": of, "model": str(made.model), "out": str(out), "prompts": told["prompts"], "steps": told["steps"],
        "adapters": paths, "flags": made.family.flags,
    }  # fmt: skip


async def _prepared(made: Made) -> dict[str, Path]:
    """What a sidecar would give its engine of the adapters that it accepts and changes."""
    found: dict[str, Path] = {}
    base = read_base(made.model)
    store = LocalStore(made.folder / "store", "r1", [made.folder.as_uri()], engine=ReadingEngine(base=base))
    try:
        for kind, path in made.adapters().items():
            verdict = examined(path, base)
            if not verdict.findings and verdict.changes:
                found[kind] = Path((await store.ensure(ArtifactRef(path.as_uri(), None))).path)
    finally:
        store.close()
    return found


def examined(path: Path, base: BaseModules) -> AdapterVerdict:
    """Our check's verdict."""
    opened = open_directory(path)
    return examine(opened.config, opened.header.tensors, base, AdapterLimits(), Policy())


def judged(made: Made) -> dict[str, Any]:
    """A family's row of the matrix, as it is kept."""
    told, served = made.told, made.served
    row = {"model_type": made.family.model_type}
    if error := told.get("error") or served.get("error"):
        return row | {"error": error.splitlines()[0][:200]}
    base = read_base(made.model)
    row["architecture"] = base.architecture or ""
    row["engine"] = f"vllm {served['version']}"
    is_like = distance(served["base"], told["answers"][""])
    row["base"] = f"{is_like:.0e}"
    kinds = {kind: _judge(kind, path, base, told, served).as_dict() for kind, path in made.adapters().items()}
    return row | {
        "kinds": kinds,
        "untrained": told["untrained"],
        "asked_ms": round(served.get("coverage_seconds", 0) * 1e3, 2),
    }


def _judge(kind: str, path: Path, base: BaseModules, told: Mapping[str, Any], served: Mapping[str, Any]) -> Judged:
    verdict = examined(path, base)
    found = {
        which: answer_of(
            served["adapters"].get(which + kind), served["base"], told["answers"][kind], told["answers"][""]
        )
        for which in (_RAW, _PREPARED)
    }
    is_accepted = not verdict.findings
    prepared = found[_PREPARED] if is_accepted and verdict.changes else None
    said = (served["adapters"].get((_PREPARED if prepared else _RAW) + kind) or {}).get("refused", "")
    return Judged(
        verdict_of(is_accepted, found[_RAW], prepared),
        tuple(sorted({one.reason for one in verdict.findings})),
        _asked(path, base, served),
        found[_RAW],
        prepared,
        said[:160].replace(str(path.parent), ""),
    )


def _asked(path: Path, base: BaseModules, served: Mapping[str, Any]) -> tuple[str, ...]:
    """What an engine's own word would refuse it for."""
    body = json.dumps({"schema": 1, **served.get("coverage", {})}).encode()
    evidence = read_coverage(body, served["version"])
    if evidence is None:
        return ("engine does not tell",)
    try:
        # An architecture that no table has: tied heads are known by the table's side, and so not looked at here.
        verdict = examined(path, replace(base, architecture=None, evidence=evidence))
    except UnfitAdapter as error:
        return tuple(sorted({one.reason for one in error.findings}))
    return tuple(sorted({one.reason for one in verdict.findings}))

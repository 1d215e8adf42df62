"""The tiny model with adapters that can be told apart, and what transformers and PEFT make of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.tools.devstack.engine_environment import find_engine_python
from registry.tools.devstack.tiny_adapters import write_adapter
from registry.tools.devstack.tiny_model import write_model
from tests.support.with_torch import reference_command, script


@dataclass(frozen=True)
class Tiny:
    """A folder with the tiny model and adapters for it."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def adapter(self, name: str) -> str:
        """The absolute path of an adapter whose weights no other name has."""
        path = self.folder / "adapters" / name
        if not path.exists():
            write_adapter(path, seed=name, model=self.model)
        return str(path)

    def changed(self, name: str, *, rank: int = 8, **config: Any) -> str:
        """The path of an adapter of its own whose config says something else."""
        path = self.folder / "changed" / name
        write_adapter(path, seed=name, model=self.model, rank=rank)
        file = path / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
        return str(path)

    def reference(self, adapters: list[str], prompts: list[str]) -> dict[str, dict[str, list[dict[str, float]]]]:
        """Greedy tokens with logprobs by transformers and PEFT: by adapter ("" is the base model), then by prompt."""
        paths = {name: Path(self.adapter(name)) for name in adapters}
        command = reference_command(find_engine_python(), self.model, paths, prompts)
        answers: dict[str, dict[str, list[dict[str, float]]]] = script(command).json
        return answers


def make_tiny(folder: Path) -> Tiny:
    """Writes the model into `folder`."""
    tiny = Tiny(folder)
    write_model(tiny.model)
    return tiny

"""Three tiny base models that the real engine serves, as architectures of the corpus."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from registry.lora.base_directory import read_base
from registry.tools.devstack.engine_environment import find_engine_python
from tests.corpus.drafts import IS_WHOLE, LLAMA, Architecture
from tests.corpus.torchvision_stub import write_stub
from tests.support.engines import VllmFlags
from tests.support.with_torch import reference_command, script

FOLDER = Path(__file__).parent
# Real vLLM has to be started for each but the first, which other tests ask, too.
NAMES = ("llama", "qwen2", "qwen2_5_vl") if IS_WHOLE else ("llama",)
SECONDS = 280
Answers = dict[str, dict[str, list[dict[str, float]]]]


@dataclass(frozen=True)
class EngineModel:
    """A base model in a directory."""

    name: str
    directory: Path
    imports: Path

    @property
    def architecture(self) -> Architecture:
        return Architecture(self.name, dict(read_base(self.directory).modules), LLAMA.targets)

    @property
    def flags(self) -> VllmFlags:
        if self.name != "qwen2_5_vl":
            return VllmFlags()
        return VllmFlags(more=("--limit-mm-per-prompt", '{"image": 0, "video": 0}'), import_path=str(self.imports))

    def answers(self, adapter: Path, prompt: str) -> Answers:
        """What PEFT answers, of the base model under the empty name and of the adapter under ``a``."""
        answers: Answers
        if self.name == "qwen2_5_vl":
            command = [str(find_engine_python()), "-P", str(FOLDER / "vision_reference.py")]
            command += ["--model", str(self.directory), "--adapter", str(adapter), "--prompt", prompt]
            answers = json.loads(ran(command, self.imports))
        else:
            answers = script(reference_command(find_engine_python(), self.directory, {"a": adapter}, [prompt])).json
        return answers


def ran(command: list[str], imports: Path) -> str:
    """What a script prints that has these imports beside those of the engine environment."""
    environment = os.environ | {"PYTHONPATH": str(imports)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def make_models(folder: Path, llama: Path) -> dict[str, EngineModel]:
    """All of them, of which the Llama is there already."""
    imports, models = write_stub(folder / "imports"), str(FOLDER / "models.py")
    if IS_WHOLE:
        ran([str(find_engine_python()), "-P", models, "--llama", str(llama), "--out", str(folder)], imports)
    return {name: EngineModel(name, llama if name == "llama" else folder / name, imports) for name in NAMES}

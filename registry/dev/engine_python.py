"""Finds the interpreter of the engine environment."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

VARIABLE = "LORAPLANE_ENGINE_PYTHON"
_IN_PROJECT = Path(".venv-engine/bin/python")


class EngineNotFound(Exception):
    """There is no environment with vLLM; the message says how to get one."""


def find_engine_python() -> Path:
    """Finds it: ``LORAPLANE_ENGINE_PYTHON``, ``.venv-engine`` here or in the project, our own if it has vLLM.

    Raises:
        EngineNotFound: there is none.
    """
    named = os.environ.get(VARIABLE)
    project = Path(__file__).parents[2]
    for candidate in [Path(named)] if named else [Path.cwd() / _IN_PROJECT, project / _IN_PROJECT]:
        if os.access(candidate, os.X_OK):
            # Not resolved: the link in the environment's folder is what makes it that environment.
            return candidate.absolute()
    if named or importlib.util.find_spec("vllm") is None:
        raise EngineNotFound(
            f"{named or 'the engine environment (.venv-engine)'} is not there; make it with: make engine, name its "
            f"interpreter with {VARIABLE}, or use simulated engines: --engine sim"
        )
    return Path(sys.executable)

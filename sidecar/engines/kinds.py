"""Which driver each kind of engine has."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from sidecar.engines.axolotl_engine import AxolotlEngine
from sidecar.engines.driver import Engine
from sidecar.engines.dynamo import Dynamo
from sidecar.engines.http_engine import HttpEngine
from sidecar.engines.loaded import PAST_FILE, LoadedNames
from sidecar.engines.pegainfer import Pegainfer
from sidecar.engines.sglang import Sglang
from sidecar.engines.vllm import VllmEngine
from sidecar.settings import Settings
from sidecar.steps import OnStep


def make_engine(settings: Settings, state: Path, on_step: OnStep) -> Engine:
    """The driver of the engine that the settings name; `state` is the replica's own directory."""
    key, limits = settings.engine_api_key_file, settings.engine_limits()
    match settings.engine_kind:
        case "vllm":
            past = LoadedNames(state, PAST_FILE)
            return VllmEngine(settings.engine, api_key_file=key, limits=limits, on_step=on_step, past=past)
        case "sglang":
            return HttpEngine(Sglang(), settings.engine, api_key_file=key, limits=limits, state=state)
        case "pegainfer":
            return HttpEngine(Pegainfer(), settings.engine, api_key_file=key, limits=limits, state=state)
        case "dynamo":
            dynamo = Dynamo(settings.engine_base_model or ())
            return HttpEngine(dynamo, settings.engine, api_key_file=key, limits=limits, state=state)
        case "axolotl":
            return AxolotlEngine(settings.engine, api_key_file=key, limits=limits, state=state)
    assert_never(settings.engine_kind)

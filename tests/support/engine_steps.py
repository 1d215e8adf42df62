"""What an engine is asked to do, one step after another, and how hypothesis draws it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.simulation.artifacts import GOOD, MISSING, REFUSED
from tests.support.engines import BASE_MODEL
from tests.support.tiny import Tiny

# Begin as the simulation's sources do, by which it knows what each is good for.
USABLE = (f"{GOOD}-one", f"{GOOD}-two", f"{GOOD}-three")
_CONFIGS: dict[str, dict[str, Any]] = {
    f"{REFUSED}-dora": {"use_dora": True},
    f"{REFUSED}-bias": {"bias": "all"},
    f"{REFUSED}-init": {"init_lora_weights": "pissa"},
    f"{REFUSED}-rank-of-none": {"r": None},
    f"{REFUSED}-rank-of-one": {"rank_pattern": {"q_proj": 32}},
    f"{REFUSED}-alpha": {"lora_alpha": "16"},
}
TOO_HIGH, NO_JSON, NO_WEIGHTS, CUT = (f"{REFUSED}-{why}" for why in ("rank", "json", "weights", "cut"))
ABSENT, NO_CONFIG = f"{MISSING}-folder", f"{MISSING}-config"
NOT_ABSOLUTE, NOTHING = "not/absolute", ""
IN_STORE = (*USABLE, *_CONFIGS, TOO_HIGH, NO_JSON, NO_WEIGHTS, CUT)
EVERYTHING = (*IN_STORE, ABSENT, NO_CONFIG, NOT_ABSOLUTE, NOTHING)


@dataclass(frozen=True)
class Load:
    name: str
    source: str


@dataclass(frozen=True)
class Unload:
    name: str


@dataclass(frozen=True)
class UnloadedByOthers:
    """By vLLM's own route, also where the driver goes by the plugin."""

    name: str


@dataclass(frozen=True)
class Swap:
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Ask:
    """A request for a completion."""

    name: str


@dataclass(frozen=True)
class Observe:
    """What the driver makes of a look at the engine."""


@dataclass(frozen=True)
class Drain:
    """What the driver says of requests, and of files that may still be read."""


Step = Load | Unload | UnloadedByOthers | Swap | Ask | Observe | Drain

ADAPTERS = ("a", "A", "team/b")
_adapters = st.sampled_from(ADAPTERS)
_names = _adapters | st.sampled_from((*ADAPTERS, BASE_MODEL, ""))
_models = st.sampled_from((*ADAPTERS, BASE_MODEL))
_sources = st.sampled_from(USABLE) | st.sampled_from(EVERYTHING)
_step: SearchStrategy[Step] = st.one_of(
    st.builds(Load, _adapters, st.sampled_from(USABLE)),
    st.builds(Load, _names, _sources),
    st.builds(Ask, _models),
    st.builds(Unload, _names),
    st.builds(Swap, _names, st.sampled_from(USABLE), _sources),
    st.builds(UnloadedByOthers, _names),
    st.builds(Observe),
    st.builds(Drain),
)
sequences: SearchStrategy[list[Step]] = st.lists(_step, min_size=1, max_size=12)


def write_sources(tiny: Tiny) -> Path:
    """Writes what can be loaded, and what cannot; gives the folder that has each under its name."""
    folders = {source: Path(tiny.changed(source, **_CONFIGS.get(source, {}))) for source in (*IN_STORE, NO_CONFIG)}
    tiny.changed(TOO_HIGH, rank=32)
    (folders[NO_JSON] / "adapter_config.json").write_bytes(b"{")
    (folders[NO_CONFIG] / "adapter_config.json").unlink()
    (folders[NO_WEIGHTS] / "adapter_model.safetensors").unlink()
    weights = folders[CUT] / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    return folders[CUT].parent

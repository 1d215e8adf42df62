"""Rows of `loraplane top`, from what sidecars of any release say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from registry.cli.views.output import OutputView
from registry.cli.views.replica_view import cell, span
from registry.model.messages import Plain
from registry.residency.standing import StandingCounts

# More than a counter of requests or seconds ever says.
_MOST = 2**63


@dataclass(frozen=True, slots=True)
class BusyReplica:
    """Work of a replica; None: nobody there says. `counts`: adapters that it serves by residency; None: not known."""

    name: str
    loaded: int | None
    running: int | None
    waiting: int | None
    requests: int | None
    prompt_tokens: int | None
    generation_tokens: int | None
    loads: int
    load_seconds: float | None
    swaps: int
    swap_seconds: float | None
    counts: StandingCounts | None = None

    def as_dict(self) -> Plain:
        known = {"served": self.counts.serving, "wanted": self.counts.wanted} if self.counts is not None else {}
        return {**{key: value for key, value in asdict(self).items() if key != "counts"}, **known}


@dataclass(frozen=True, slots=True)
class BusyAdapter:
    """Use of an adapter. `last_used_seconds` None: never, or nobody says; `requests` None: nobody says."""

    name: str
    replicas: list[str]
    last_used_seconds: float | None
    requests: int | None
    loads: int
    swaps: int
    evictions: int


def replica_row(said: Plain, counts: Mapping[str, StandingCounts] | None = None) -> BusyReplica:
    """Report of one sidecar on its engine and itself; `counts`: by replica, as far as they are known."""
    name = cell(said.get("replica"))
    engine = _dict(said.get("engine"))
    loads, load_seconds = _calls(said, "load")
    swaps, swap_seconds = _calls(said, "swap")
    loaded = sum(1 for one in _adapters(said) if one.get("loaded") is True)
    return BusyReplica(
        name,
        loaded if engine or loaded else None,  # of an engine out of reach nobody knows that it lists nothing
        _count(engine.get("running")),
        _count(engine.get("waiting")),
        _count(engine.get("requests")),
        _count(engine.get("prompt_tokens")),
        _count(engine.get("generation_tokens")),
        loads,
        load_seconds,
        swaps,
        swap_seconds,
        (counts or {}).get(name),
    )


def adapter_rows(answers: Iterable[Plain]) -> list[BusyAdapter]:
    """Reports of all sidecars on adapters, by the names that engines have for them; the last used first."""
    found: dict[str, list[tuple[str, Plain]]] = {}
    for said in answers:
        for one in _adapters(said):
            found.setdefault(cell(one.get("name")), []).append((cell(said.get("replica")), one))
    rows = [_adapter_row(name, parts) for name, parts in found.items()]
    return sorted(rows, key=lambda one: (one.last_used_seconds is None, one.last_used_seconds or 0.0, one.name))


def _adapter_row(name: str, parts: list[tuple[str, Plain]]) -> BusyAdapter:
    requests = [count for _, one in parts if (count := _count(one.get("requests"))) is not None]
    used = [seconds for _, one in parts if (seconds := _number(one.get("last_used_seconds"))) is not None]
    return BusyAdapter(
        name,
        [replica for replica, one in parts if one.get("loaded") is True],
        min(used, default=None),
        sum(requests) if requests else None,
        *(sum(_count(one.get(key)) or 0 for _, one in parts) for key in ("loads", "swaps", "evictions")),
    )


def _calls(said: Plain, kind: str) -> tuple[int, float | None]:
    """Number of calls that succeeded, and their average time."""
    calls = _dict(_dict(said.get("calls")).get(kind))
    count, seconds = _count(calls.get("count")) or 0, _number(calls.get("seconds"))
    return count, round(seconds / count, 3) if count and seconds is not None else None


def _adapters(said: Plain) -> list[Plain]:
    found = said.get("adapters")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _dict(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    return float(value) if type(value) in {int, float} and 0 <= value < _MOST else None  # type: ignore[operator, arg-type]


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST else None


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{span(int(seconds))} ago"


REPLICAS: OutputView[BusyReplica] = OutputView(
    name=lambda one: one.name,
    plain=lambda one: one.as_dict(),
    columns={
        "REPLICA": lambda one: one.name,
        "SERVED": lambda one: one.counts.share if one.counts is not None else "-",
        "LOADED": lambda one: cell(one.loaded),
        "RUNNING": lambda one: cell(one.running),
        "WAITING": lambda one: cell(one.waiting),
        "REQUESTS": lambda one: cell(one.requests),
        "PROMPT TOKENS": lambda one: cell(one.prompt_tokens),
        "NEW TOKENS": lambda one: cell(one.generation_tokens),
        "LOADS": lambda one: str(one.loads),
        "SWAPS": lambda one: str(one.swaps),
    },
    more={"LOAD SECONDS": lambda one: cell(one.load_seconds), "SWAP SECONDS": lambda one: cell(one.swap_seconds)},
)
ADAPTERS: OutputView[BusyAdapter] = OutputView(
    name=lambda one: one.name,
    plain=asdict,
    columns={
        "ADAPTER": lambda one: one.name,
        "REPLICAS": lambda one: cell(one.replicas),
        "REQUESTS": lambda one: cell(one.requests),
        "LAST USED": lambda one: _ago(one.last_used_seconds),
        "LOADS": lambda one: str(one.loads),
        "SWAPS": lambda one: str(one.swaps),
        "EVICTIONS": lambda one: str(one.evictions),
    },
)

"""Models of a pool in OpenAI's form: base models, and adapters served. Pure.

A client of OpenAI's API asks `/v1/models` which names it may use. An engine answers for itself; this module answers for
a pool, from residency, so that the list and the stream for routers cannot disagree:

- A card is there for each name that some replica proves to serve (R9), by the name that its engine answers to: with
  versioned names ``name@generation``, of each generation that is kept.
- `parent`, `root` and `max_model_len` are fields of vLLM's own cards. `root` names the generation, not a path: each
  replica has a folder of its own. `max_model_len` is what each replica that serves the name takes.
- What OpenAI's form does not know stands in one field, `loraplane`: the pool, the generation, and of a lazy adapter
  whether some engine has it loaded already.

A card changes only if what it says does, so that whoever polls mostly hears that nothing did.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from registry.model.errors import RegistryError
from registry.model.replica_state import ParsedStatus, ReplicaState
from registry.residency.derive import DerivedResidence, models_by_model, residency_of
from registry.residency.view import AdapterView, PoolView
from registry.transactions.decode import read_adapter

_OWNER = "loraplane"


@dataclass(frozen=True, slots=True)
class EngineHead:
    """Base models of one engine, and the tokens of its longest context; None: it does not say."""

    base_models: tuple[str, ...]
    max_model_len: int | None


Heads = Mapping[str, EngineHead]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One name that requests may use, as far as it is the same for all adapters that stand alike."""

    model: str
    generation: int
    lazy: bool
    loaded: bool
    parent: str
    max_model_len: int | None


def heads_of(view: PoolView) -> Heads:
    """Heads of a pool's engines by replica; without those that are out of reach."""
    found = dict[str, EngineHead]()
    for name, one in view.everybody.items():
        if isinstance(one.reading, ParsedStatus) and name not in view.withheld:
            engine = one.reading.status.engine
            if engine.base_models and engine.incarnation and not one.reading.status.stale:
                found[name] = EngineHead(tuple(engine.base_models), engine.max_model_len)
    return found


def base_cards(pool: str, heads: Heads) -> Iterator[bytes]:
    """The cards of the base models, sorted."""
    for base in sorted({base for head in heads.values() for base in head.base_models}):
        longest = _least(head for head in heads.values() if base in head.base_models)
        yield _card(base, 0, base, None, longest, {"pool": pool})


def adapter_cards(view: PoolView, keys: Iterable[str], heads: Heads) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """The cards of the adapters of these name keys; none where nobody serves it, or there is no such record."""
    alike: dict[str, tuple[ServedModel, ...]] = {}
    for key in keys:
        adapter = view.adapter(key)
        if adapter is None:
            yield key, ()
            continue
        like = view.alike(adapter) or adapter
        if like.key not in alike:
            alike[like.key] = tuple(_models(view, like, heads))
        found = alike[like.key]
        created = _created(view, adapter) if found else 0
        yield key, tuple(_adapter_card(view, one, adapter, created) for one in _named(found, like, adapter))


def _models(view: PoolView, adapter: AdapterView, heads: Heads) -> Iterator[ServedModel]:
    """The names by which replicas serve it, each with its newest generation."""
    serving = [one for one in residency_of(view, adapter).replicas if one.state is ReplicaState.SERVING]
    for model in sorted({one.model for one in serving}):
        yield _model([one for one in serving if one.model == model], adapter, heads)
    for number in sorted({number for one in serving for number in one.earlier}, reverse=True):
        keeping = [
            replace(one, model=f"{adapter.name}@{number}", generation=number, wanted=None)
            for one in serving
            if number in one.earlier
        ]
        yield _model(keeping, adapter, heads)


def _model(serving: list[DerivedResidence], adapter: AdapterView, heads: Heads) -> ServedModel:
    known = [heads[one.replica] for one in serving if one.replica in heads]
    return ServedModel(
        serving[0].model,
        max(one.generation for one in serving),
        adapter.lazy,
        any(one.loaded for one in serving),
        known[0].base_models[0] if known else "",
        _least(known),
    )


def _named(found: Iterable[ServedModel], like: AdapterView, adapter: AdapterView) -> Iterator[ServedModel]:
    """The same of another adapter that stands alike."""
    if like is adapter:
        yield from found
        return
    models = models_by_model(like, adapter)
    for one in found:
        yield replace(one, model=models[one.model], generation=adapter.generation)


def _least(heads: Iterable[EngineHead]) -> int | None:
    """The longest context that all of them take, as far as they say."""
    return min((head.max_model_len for head in heads if head.max_model_len is not None), default=None)


def _created(view: PoolView, adapter: AdapterView) -> int:
    """Seconds since 1970 when its newest generation was made; 0: its record does not say."""
    try:
        record = read_adapter(view.snapshot.pool, view.records[adapter.key].kv)
        return int(datetime.fromisoformat(record.updated_at).timestamp())
    except (RegistryError, ValueError, OverflowError):
        return 0


def _adapter_card(view: PoolView, one: ServedModel, adapter: AdapterView, created: int) -> bytes:
    ours: dict[str, Any] = {"pool": view.snapshot.pool, "generation": one.generation}
    if one.lazy:
        ours |= {"lazy": True, "loaded": one.loaded}
    root = f"{adapter.name}@{one.generation}"
    return _card(one.model, created, root, one.parent or None, one.max_model_len, ours)


def _card(
    model: str, created: int, root: str, parent: str | None, longest: int | None, ours: Mapping[str, Any]
) -> bytes:
    card = {"id": model, "object": "model", "created": created, "owned_by": _OWNER, "root": root, "parent": parent}
    return json.dumps({**card, "max_model_len": longest, _OWNER: ours}, separators=(",", ":")).encode()

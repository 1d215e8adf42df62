"""Computes published pairs, module by module, with their errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

import torch

from registry.lora.config import AdapterConfig, write_config
from registry.lora.digest import CONFIG_FILE, WEIGHTS_FILE
from registry.lora.directory import Opened
from registry.lora.findings import CannotPublish
from registry.lora.json_files import json_object
from registry.lora.modules import Patterns, pattern_of
from registry.lora.tensor_names import TensorName, TensorPart, entry_of
from registry.tools.convert.arithmetic import (
    First,
    Pair,
    Parts,
    difference,
    dora_delta,
    parts_of,
    parts_of_pair,
    relative_error,
)
from registry.tools.convert.options import ConversionOptions, ModuleOutcome, Task, check_errors
from registry.tools.convert.stored import DTYPES, Place, places_in, write_tensors

_UPS, _DOWNS = (TensorPart.B, TensorPart.EMBEDDING_B), (TensorPart.A, TensorPart.EMBEDDING_A)


@dataclass(frozen=True, slots=True)
class BaseWeights:
    """The numbers of the base model, and what an initialisation took out of them; None where nothing did."""

    places: Mapping[str, Place]
    first: First | None = None


@dataclass(frozen=True, slots=True)
class _Trained:
    """One module of the adapter: its name and the base's, its pair as stored, its rank and scale."""

    name: str
    base_name: str
    up: TensorName
    down: TensorName
    pair: Pair
    magnitude: torch.Tensor | None
    scale: float

    @property
    def scaled(self) -> Pair:
        """The pair whose product is what is added to the weights."""
        return _times(self.scale, self.pair)


def convert(
    source: Path, out: Path, opened: Opened, task: Task, options: ConversionOptions, base: BaseWeights | None
) -> list[ModuleOutcome]:
    """Writes the adapter that is published into the directory `out`.

    Raises:
        CannotPublish: the base's numbers do not do, or an error is larger than it may be; nothing was written.
        OSError: a file cannot be read or written.
    """
    places = places_in(source / WEIGHTS_FILE)
    is_new = task.needs_base or task.changes_rank
    converter = _Converter(task, options, base)
    tensors = _others(places, task, options)
    outcomes = []
    for trained in _trained(places, opened.config, task):
        pair, outcome = converter.made(trained)
        entries = (trained.up, trained.down)
        names = [entry.key(trained.base_name) if is_new else entry.tensor.name for entry in entries]
        tensors |= zip(names, (pair.up.contiguous(), pair.down.contiguous()), strict=True)
        outcomes.append(outcome)
    check_errors(outcomes, options.max_error)
    write_tensors(out / WEIGHTS_FILE, tensors, opened.header.metadata)
    config = (source / CONFIG_FILE).read_bytes()
    (out / CONFIG_FILE).write_bytes(new_config(config, outcomes) if is_new else config)
    return outcomes


class _Converter:
    """Steps done to each module."""

    def __init__(self, task: Task, options: ConversionOptions, base: BaseWeights | None) -> None:
        self._task = task
        self._options = options
        self._base = base

    def made(self, trained: _Trained) -> tuple[Pair, ModuleOutcome]:
        """The pair that is stored for a module, and how far it is from the trained one."""
        if trained.magnitude is not None:
            wanted = self._options.rank or trained.pair.rank
            weight = self._weight(trained).double()
            delta = dora_delta(weight, trained.scaled, trained.magnitude.double())
            return self._shortened(trained, "dora", delta, parts_of(delta.float()), wanted)
        if self._task.init is not None:
            return self._without_first(trained)
        limit = min(trained.pair.rank, self._options.rank or trained.pair.rank)
        if limit < trained.pair.rank:
            return self._shortened(trained, "rank", trained.scaled, parts_of_pair(trained.scaled), limit)
        made = self._cast(trained.pair, trained.pair.down.dtype)
        error = relative_error(trained.scaled, _times(trained.scale, made))
        kind = "cast" if made.up.dtype != trained.pair.up.dtype else "kept"
        return made, _outcome(trained, kind, made, trained.scale * made.rank, error)

    def _without_first(self, trained: _Trained) -> tuple[Pair, ModuleOutcome]:
        """PiSSA and OLoRA: what is added is the difference of the trained product and the first one."""
        first = self._first(trained)
        exact = difference(trained.scaled, first)
        limit = self._options.rank
        if limit is not None and limit < exact.rank:
            return self._shortened(trained, "init", exact, parts_of_pair(exact), limit)
        made = self._cast(exact, torch.float32)
        return made, _outcome(trained, "init", made, made.rank, relative_error(exact, _times(1, made)))

    def _shortened(
        self, trained: _Trained, kind: str, delta: Pair | torch.Tensor, parts: Parts, rank: int
    ) -> tuple[Pair, ModuleOutcome]:
        made = self._cast(parts.nearest(rank), torch.float32)
        error = relative_error(delta, _times(1, made))
        enough = parts.rank_within(self._options.max_error)
        return made, _outcome(trained, kind, made, made.rank, error, enough)

    def _cast(self, pair: Pair, own: torch.dtype) -> Pair:
        dtype = DTYPES[self._options.dtype] if self._options.dtype is not None else own
        return Pair(pair.up.to(dtype), pair.down.to(dtype))

    def _weight(self, trained: _Trained) -> torch.Tensor:
        place = self._base.places.get(f"{trained.base_name}.weight") if self._base is not None else None
        if place is None or place.tensor.dtype not in DTYPES:
            raise CannotPublish(f"the base has no plain weights of {trained.base_name}; name one that is not quantized")
        return place.read()

    def _first(self, trained: _Trained) -> Pair:
        weight = self._weight(trained)
        first = self._base.first if self._base is not None else None
        if first is None:
            raise CannotPublish(f"nothing says how {trained.name} began; name the first adapter with --initial")
        try:
            return first(trained.name, weight, trained.pair.rank, trained.scale)
        except KeyError as error:
            raise CannotPublish(f"{error.args[0]}; name the adapter that this training began with") from error


def _times(scale: float, pair: Pair) -> Pair:
    """The stored pair with its scale, in the precision in which errors are measured."""
    return Pair(scale * pair.up.double(), pair.down.double())


def _outcome(
    trained: _Trained, kind: str, made: Pair, alpha: float, error: float, enough: int | None = None
) -> ModuleOutcome:
    return ModuleOutcome(trained.base_name, kind, trained.pair.rank, made.rank, alpha, error, enough)


def _trained(places: Mapping[str, Place], config: AdapterConfig, task: Task) -> Iterator[_Trained]:
    """The modules in the order of their names, each read when its turn comes."""
    ranks = Patterns(config.rank_pattern, config.r)
    alphas = Patterns(config.alpha_pattern, config.lora_alpha)
    modules: dict[str, dict[TensorPart, TensorName]] = {}
    for entry in _kept(places, task):
        modules.setdefault(entry.module, {})[entry.part] = entry
    for name, parts in sorted(modules.items()):
        up, down = (next((parts[one] for one in halves if one in parts), None) for halves in (_UPS, _DOWNS))
        if up is None or down is None:
            continue
        rank = ranks.value(name)
        scale = alphas.value(name) / (sqrt(rank) if config.use_rslora else rank)
        magnitude = places[parts[TensorPart.MAGNITUDE].tensor.name].read() if TensorPart.MAGNITUDE in parts else None
        renamed = task.verdict.changes.renamed.get(down.tensor.name)
        base_name = entry_of(replace(down.tensor, name=renamed)).module if renamed else name
        pair = Pair(places[up.tensor.name].read(), places[down.tensor.name].read())
        yield _Trained(name, base_name, up, down, pair, magnitude, float(scale))


def _kept(places: Mapping[str, Place], task: Task) -> Iterator[TensorName]:
    """Tensors that are kept; magnitudes are, of what is served, but they are computed with."""
    dropped = set(task.verdict.changes.dropped)
    for place in places.values():
        entry = entry_of(place.tensor)
        if entry.part is TensorPart.MAGNITUDE or place.tensor.name not in dropped:
            yield entry


def _others(places: Mapping[str, Place], task: Task, options: ConversionOptions) -> dict[str, torch.Tensor]:
    """Tensors that are no halves of pairs, such as a classifier's."""
    pairs = {*_UPS, *_DOWNS, TensorPart.MAGNITUDE}
    names = [entry.tensor.name for entry in _kept(places, task) if entry.part not in pairs]
    tensors = {name: places[name].read() for name in names}
    return {name: one.to(DTYPES[options.dtype]) if options.dtype else one for name, one in tensors.items()}


def new_config(content: bytes, outcomes: Sequence[ModuleOutcome]) -> bytes:
    """The configuration under which the new pairs have their scales: alpha / r of each module."""
    common = max(outcomes, key=lambda one: one.rank)
    ranks = {one.module: one.rank if one.rank != common.rank else None for one in outcomes}
    alphas = {one.module: one.alpha if one.alpha != common.alpha else None for one in outcomes}
    fields = {
        "r": common.rank,
        "lora_alpha": common.alpha,
        "rank_pattern": pattern_of(ranks, common.rank),
        "alpha_pattern": pattern_of(alphas, common.alpha),
        "init_lora_weights": True,
        "use_dora": False,
        "use_rslora": False,
    }
    return write_config({**json_object(CONFIG_FILE, content), **fields})

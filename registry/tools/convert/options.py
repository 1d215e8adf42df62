"""Options of a conversion, and outcomes of its modules. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from typing import Literal

from registry.lora.base import BaseModules, model_name
from registry.lora.check import AdapterVerdict, examine
from registry.lora.config import AdapterConfig
from registry.lora.directory import Opened
from registry.lora.findings import AdapterWarning, CannotPublish, Finding, shown
from registry.lora.modules import DTYPES
from registry.lora.policy import AdapterLimits, Policy
from registry.lora.tensor_names import TensorPart, entry_of


@dataclass(frozen=True, slots=True)
class ModuleOutcome:
    """One module.

    Attributes:
        module: its name in the base.
        kind: ``dora``, ``init``, ``rank``, ``cast`` or ``kept``: what was computed.
        trained_rank: its rank before.
        rank: its rank now.
        alpha: its alpha now.
        error: of what it adds to the weights, relative to what the trained one adds, in the Frobenius norm.
        enough: the lowest rank whose error is within the bound; None where no rank was lost.
    """

    module: str
    kind: str
    trained_rank: int
    rank: int
    alpha: float
    error: float
    enough: int | None = None

    def as_dict(self) -> dict[str, object]:
        """The outcome for programs."""
        return asdict(self)


def check_errors(outcomes: Sequence[ModuleOutcome], max_error: float) -> None:
    """Raises CannotPublish if an error is larger than it may be, with the rank that would do."""
    above = [one for one in outcomes if one.error > max_error or isnan(one.error)]
    if not above:
        return
    worst = max(above, key=lambda one: (isnan(one.error), one.error))
    ranks = [one.enough for one in outcomes if one.enough is not None]
    remedy = f"rank {max(ranks)} would do (--rank), or allow" if ranks else "take another --dtype, or allow"
    share = f"{len(above)} of {len(outcomes)} modules are above"
    raise CannotPublish(
        f"{worst.module}: found a relative error of {worst.error:.3g} ({share}), "
        f"expected at most {max_error:g}; {remedy} more with --max-error"
    )


Dtype = Literal["F32", "F16", "BF16"]
DEFAULT_MAX_ERROR = 0.05
# PEFT takes these out of the base's weights again when it loads the adapter; the same way each time.
_REPEATABLE_INITS = {"pissa", "olora"}
# These only if the adapter was kept as it was before its training.
_KEPT_INITS = re.compile(r"pissa|olora|corda|lora_ga|pissa_niter_[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """Wishes of the caller.

    Attributes:
        rank: highest rank of a module; None: that of its training.
        dtype: of the numbers; None: as they are, and F32 where they are computed.
        max_error: of each module, relative, in the Frobenius norm, above which nothing is published.
        policy: what else may be done: remap and vision.
        has_initial: True if the adapter as it was before its training is at hand.
    """

    rank: int | None = None
    dtype: Dtype | None = None
    max_error: float = DEFAULT_MAX_ERROR
    policy: Policy = field(default_factory=Policy)
    has_initial: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """Computation that is needed; `verdict` is on the adapter as it will be, apart from its ranks.

    Attributes:
        is_dora: its magnitudes go into its pairs.
        init: the initialisation that is taken out again, None: nothing is.
        changes_rank: some module may lose rank.
        casts: the numbers get another type.
    """

    verdict: AdapterVerdict
    is_dora: bool
    init: str | None
    changes_rank: bool
    casts: bool

    @property
    def needs_base(self) -> bool:
        """True if the numbers of the base model are needed."""
        return self.is_dora or self.init is not None

    def __bool__(self) -> bool:
        return self.needs_base or self.changes_rank or self.casts or bool(self.verdict.changes.dropped)


def task_of(opened: Opened, base: BaseModules | None, options: ConversionOptions) -> Task:
    """Work that an adapter needs; its verdict has findings where publishing cannot help."""
    config, tensors = opened.config, opened.header.tensors
    init = _mendable_init(config, has_initial=options.has_initial)
    is_dora = bool(config.use_dora) or any(entry_of(tensor).part is TensorPart.MAGNITUDE for tensor in tensors)
    mended: dict[str, object] = {"use_dora": False, "init_lora_weights": True}
    if config.init_lora_weights is not None and init is None:
        mended.pop("init_lora_weights")
    policy = replace(options.policy, dora="strip" if is_dora else "reject")
    verdict = examine(config.model_copy(update=mended), tensors, base, AdapterLimits(), policy)
    return Task(
        verdict=verdict,
        is_dora=is_dora,
        init=init,
        changes_rank=options.rank is not None and options.rank < config.highest_rank,
        casts=options.dtype is not None and any(tensor.dtype != options.dtype for tensor in tensors),
    )


def _mendable_init(config: AdapterConfig, *, has_initial: bool) -> str | None:
    init = config.init_lora_weights
    if not isinstance(init, str):
        return None
    known = _KEPT_INITS.fullmatch(init.lower()) if has_initial else init.lower() in _REPEATABLE_INITS
    return init if known else None


def base_doubts(task: Task, opened: Opened, names: Collection[str]) -> list[AdapterWarning]:
    """Warning where an adapter is converted with the weights of a base that is not called as its own.

    Only names tell two bases of the same shapes apart, and with the weights of another it is another adapter.
    """
    named = opened.config.base_model_name_or_path
    if not task.needs_base or named is None or model_name(named) in names:
        return []
    message = (
        f"the adapter's own configuration says base model {shown(named)}, the weights that it is converted with are of "
        f"{' or '.join(sorted(names))}: only with those that it was trained on it answers as the training did"
    )
    return [AdapterWarning("base_name_differs", message)]


def impossible(task: Task, opened: Opened) -> list[Finding]:
    """Findings against computing it, beside what speaks against the adapter."""
    findings = []
    extra = opened.config.model_extra or {}
    if task.needs_base and extra.get("fan_in_fan_out"):
        findings.append(_not_converted("fan_in_fan_out", "True", "False", "merge it with PEFT and train plain LoRA"))
    if task.is_dora and task.init is not None:
        remedy = "convert the initialisation with PEFT's save_pretrained(path_initial_model_for_weight_conversion=…)"
        findings.append(_not_converted("use_dora", f"DoRA and init_lora_weights={task.init!r}", "one of them", remedy))
    embeddings = [one.name for one in opened.header.tensors if entry_of(one).part is TensorPart.EMBEDDING_A]
    if task.needs_base and embeddings:
        findings.append(_not_converted(embeddings[0], "an embedding", "linear modules", "train it without embeddings"))
    elif task.is_dora:
        findings += _magnitudes(task, opened)
    return findings


def _magnitudes(task: Task, opened: Opened) -> list[Finding]:
    """Without one for each output of each module, or with some that the configuration denies, it was not trained so."""
    dropped = set(task.verdict.changes.dropped)
    entries = [entry_of(tensor) for tensor in opened.header.tensors]
    magnitudes = [one for one in entries if one.part is TensorPart.MAGNITUDE]
    found = {one.module: one.tensor for one in magnitudes}
    remedy = "save the adapter again as it was trained, both files"
    if not opened.config.use_dora:
        return [_not_converted("use_dora", f"not set, and {len(found)} magnitudes", "both or none", remedy)]
    if len(found) < len(magnitudes):
        return [_not_converted("lora_magnitude_vector", "two of one module", "one", remedy)]
    for up in (one for one in entries if one.part is TensorPart.B and one.tensor.name not in dropped):
        tensor, outputs = found.get(up.module), up.tensor.shape[:1]
        if tensor is None or tensor.shape != outputs or tensor.dtype not in DTYPES:
            said = f"a magnitude of {tensor.dtype} {list(tensor.shape)}" if tensor else "no magnitude"
            return [_not_converted(up.module, said, f"one of each of {outputs[0]} outputs", remedy)]
    return []


def _not_converted(key: str, found: str, expected: str, remedy: str) -> Finding:
    return Finding("unsupported_feature", key, found, f"{expected}, to be converted", remedy)

"""Reads adapter_config.json as PEFT writes it, and writes it anew. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypeIs

from registry.lora.digest import CONFIG_FILE, OF_MLX, canonical_json
from registry.lora.findings import AdapterWarning, Finding, UnfitAdapter, shown
from registry.lora.json_files import SAVE_AGAIN, json_object
from registry.lora.text import printable, some_of

MAX_CONFIG_BYTES = 1 << 20
_MAX_PATTERNS = 4096
# Some trainers name each module in full instead of its kind.
_MAX_MODULES = 200_000
# What PEFT knows and no engine of ours applies: served without it, the adapter would be another one.
UNAPPLIED = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
    "velora_config",
)
# What PEFT and trainers that stand on it write beside the fields of `AdapterConfig`, and what changes no answer.
_HARMLESS = frozenset(
    {
        *("auto_mapping", "corda_config", "enable_lora", "ensure_weight_tying", "eva_config", "exclude_modules"),
        *("fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout"),
        *("lora_dtype", "lora_ga_config", "lorap_lr_ratio", "megatron_config", "megatron_core", "merge_weights"),
        *("peft_type", "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type"),
    }
)
_MAX_TOLD = 8
_PARAMETERS = "target_parameters"
# Experts are one parameter of three dimensions, and engines have routers of their own.
_LINEAR_WEIGHT = re.compile(r"(?!.*experts)(?:.*\.)?\w+_proj\.weight", re.ASCII)
_MODULES_TO_SAVE = {"classifier", "score"}
# These only say how the weights began. The others changed the base's weights, at each load or, as LoRA-GA, once when
# the training began: PEFT and engines load what that left as if it were plain, and answer otherwise than the training.
_PLAIN_INITS = {"gaussian", "eva", "orthogonal", "mica"}

Alpha = Annotated[float, Field(allow_inf_nan=False, ge=-1e9, le=1e9)]
Rank = Annotated[int, Field(ge=1, le=1 << 20)]
Modules = Annotated[list[str], Field(max_length=_MAX_MODULES)]


class AdapterConfig(BaseModel):
    """The fields of a LoRA adapter's configuration that decide what is computed."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    # Fields that are not written as every engine takes them, as they are to be.
    rewritten: Annotated[dict[str, object], Field(exclude=True)] = {}
    r: Rank
    lora_alpha: Alpha
    target_modules: str | Modules
    base_model_name_or_path: str | None = None
    bias: str | None = "none"
    lora_bias: bool | None = False
    use_rslora: bool | None = False
    use_dora: bool | None = False
    init_lora_weights: bool | str | None = True
    modules_to_save: Modules | None = None
    rank_pattern: Annotated[dict[str, Rank], Field(max_length=_MAX_PATTERNS)] | None = None
    alpha_pattern: Annotated[dict[str, Alpha], Field(max_length=_MAX_PATTERNS)] | None = None

    @property
    def highest_rank(self) -> int:
        """The rank that an engine's limit is compared with."""
        return max([self.r, *(self.rank_pattern or {}).values()])

    @property
    def unapplied(self) -> list[str]:
        """Fields of `UNAPPLIED` that are in use."""
        extra = self.model_extra or {}
        return [name for name in UNAPPLIED if extra.get(name) and not (name == _PARAMETERS and self.names_weights)]

    @property
    def names_weights(self) -> bool:
        """True if ``target_parameters`` names weights of linear modules, of which PEFT makes plain LoRA.

        With patterns it is not: PEFT matches these with the names of parameters, and engines with those of modules.
        """
        names = (self.model_extra or {}).get(_PARAMETERS)
        if not isinstance(names, list) or not names or self.rank_pattern or self.alpha_pattern:
            return False
        return all(isinstance(one, str) and _LINEAR_WEIGHT.fullmatch(one) for one in names)


# Fields of MLX's configuration.
_MLX = frozenset({"fine_tune_type", "lora_parameters"})


def read_config(content: bytes) -> AdapterConfig:
    """The configuration that a file holds.

    Raises:
        UnfitAdapter: ``not_an_adapter``, ``other_format``, ``wrong_peft_type`` or ``invalid_config``.
    """
    fields = json_object(CONFIG_FILE, content)
    kind = fields.get("peft_type")
    if kind is None and not _MLX.isdisjoint(fields):
        found = f"no peft_type, and {shown(sorted(_MLX.intersection(fields)))}, as of {OF_MLX.what}"
        raise UnfitAdapter([Finding("other_format", CONFIG_FILE, found, "peft_type 'LORA'", OF_MLX.remedy)])
    if kind != "LORA":
        raise UnfitAdapter(
            [Finding("wrong_peft_type", "peft_type", shown(kind), "'LORA'", "train, or convert it to, a LoRA adapter")]
        )
    try:
        rewritten = _whole_ranks(fields) | ({"bias": "none"} if fields.get("bias", "") is None else {})
        return AdapterConfig.model_validate({**fields, **rewritten, "rewritten": rewritten})
    except ValidationError as error:
        raise UnfitAdapter(_complaints(error, fields)) from error


# Of their keys the first that matches a module counts.
_PATTERNS = ("rank_pattern", "alpha_pattern")


def write_config(fields: Mapping[str, object]) -> bytes:
    """The file of these fields: sorted, but for the keys of patterns, whose order decides what is computed."""
    sorted_fields = json.loads(canonical_json(fields))
    return json.dumps(
        {name: fields[name] if name in _PATTERNS else value for name, value in sorted_fields.items()},
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()


def _whole_ranks(fields: dict[str, Any]) -> dict[str, object]:
    """The fields with ranks that trainers saved as 8.0, in whole numbers."""
    rank, pattern = fields.get("r"), fields.get("rank_pattern")
    found: dict[str, object] = {"r": int(rank)} if _is_whole_float(rank) else {}
    if isinstance(pattern, dict) and any(map(_is_whole_float, pattern.values())):
        found["rank_pattern"] = {key: int(one) if _is_whole_float(one) else one for key, one in pattern.items()}
    return found


def _is_whole_float(value: object) -> TypeIs[float]:
    return isinstance(value, float) and value.is_integer()


def config_warnings(config: AdapterConfig) -> list[AdapterWarning]:
    """Fields in use that neither PEFT has, up to 0.21, nor a trainer that is known here."""
    used = {name: value for name, value in (config.model_extra or {}).items() if value}
    unknown = sorted(used.keys() - _HARMLESS - set(UNAPPLIED))
    if not unknown:
        return []
    told = some_of([f"{shown(name)[1:-1]}={shown(used[name])}" for name in unknown], _MAX_TOLD)
    message = (
        f"adapter_config.json has fields that are not known: {told}; engines pass over them, so if one of them "
        "changes what is computed, answers differ from training"
    )
    return [AdapterWarning("unknown_field", printable(message))]


def _complaints(error: ValidationError, fields: dict[str, Any]) -> list[Finding]:
    """One for each field, however many of its members are wrong."""
    found: dict[str, Finding] = {}
    for problem in error.errors(include_url=False, include_context=False):
        name = str(problem["loc"][0])
        value = shown(fields[name]) if name in fields else "nothing"
        found.setdefault(name, Finding("invalid_config", name, value, problem["msg"], SAVE_AGAIN))
    return list(found.values())


def config_findings(config: AdapterConfig, dropped: Iterable[str] = ()) -> list[Finding]:
    """Demands of a configuration that engines do not meet, or meet wrongly. DoRA is a matter of policy, not here.

    Args:
        config: as it was read.
        dropped: ends of names of modules that are left out.
    """
    return [*_bias(config), *_features(config), *_init(config), *_saved(config, dropped), *_alphas(config)]


def _bias(config: AdapterConfig) -> list[Finding]:
    remedy = "train it with bias='none' and lora_bias=False"
    bias = config.bias or "none"
    findings = [Finding("bias_not_supported", "bias", repr(bias), "'none'", remedy)] if bias != "none" else []
    if config.lora_bias:
        findings.append(Finding("bias_not_supported", "lora_bias", "True", "False", remedy))
    return findings


def _features(config: AdapterConfig) -> list[Finding]:
    extra = config.model_extra or {}
    return [
        Finding("unsupported_feature", name, shown(extra[name]), "nothing", f"train the adapter without {name}")
        for name in config.unapplied
    ]


def _init(config: AdapterConfig) -> list[Finding]:
    init = config.init_lora_weights
    if not isinstance(init, str) or init.lower() in _PLAIN_INITS:
        return []
    remedy = "convert it with PEFT's save_pretrained(path_initial_model_for_weight_conversion=…)"
    return [
        Finding("unsupported_init", "init_lora_weights", shown(init), "an initialisation that keeps the base", remedy)
    ]


def left_to_save(config: AdapterConfig, dropped: Iterable[str]) -> list[str]:
    """The names in ``modules_to_save`` that an engine takes, or that `dropped` leaves in the file."""
    without = {end.rpartition(".")[2] for end in dropped} - _MODULES_TO_SAVE
    return [name for name in config.modules_to_save or () if name.rpartition(".")[2] not in without]


def _saved(config: AdapterConfig, dropped: Iterable[str]) -> list[Finding]:
    others = sorted(set(left_to_save(config, dropped)) - _MODULES_TO_SAVE)
    remedy = "train it without modules_to_save, or merge those modules into a base of their own; "
    return [
        Finding(
            "unsupported_modules_to_save",
            "modules_to_save",
            shown(name),
            "classifier or score",
            f"{remedy}prepare.drop: [{shown(name)[1:-1]}] serves it with the base's, and loses what they learned",
        )
        for name in others
    ]


def _alphas(config: AdapterConfig) -> list[Finding]:
    alphas = {"lora_alpha": config.lora_alpha}
    alphas |= {f"alpha_pattern.{name}": value for name, value in (config.alpha_pattern or {}).items()}
    remedy = "save the alpha that it was trained with; with 0 it would answer as the base model does"
    return [
        Finding("zero_alpha", key[:300], "0", "another number", remedy) for key, value in alphas.items() if value == 0
    ]

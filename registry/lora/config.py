"""Reads adapter_config.json as PEFT writes it. Pure."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from registry.lora.digest import CONFIG_FILE
from registry.lora.findings import Finding, UnfitAdapter, shown
from registry.lora.json_files import SAVE_AGAIN, json_object

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
        return [name for name in UNAPPLIED if extra.get(name)]


def read_config(content: bytes) -> AdapterConfig:
    """The configuration that a file holds.

    Raises:
        UnfitAdapter: ``not_an_adapter``, ``wrong_peft_type`` or ``invalid_config``.
    """
    fields = json_object(CONFIG_FILE, content)
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise UnfitAdapter(
            [Finding("wrong_peft_type", "peft_type", shown(kind), "'LORA'", "train, or convert it to, a LoRA adapter")]
        )
    try:
        return AdapterConfig.model_validate(fields)
    except ValidationError as error:
        raise UnfitAdapter(_complaints(error, fields)) from error


def _complaints(error: ValidationError, fields: dict[str, Any]) -> list[Finding]:
    """One for each field, however many of its members are wrong."""
    found: dict[str, Finding] = {}
    for problem in error.errors(include_url=False, include_context=False):
        name = str(problem["loc"][0])
        value = shown(fields[name]) if name in fields else "nothing"
        found.setdefault(name, Finding("invalid_config", name, value, problem["msg"], SAVE_AGAIN))
    return list(found.values())


def config_findings(config: AdapterConfig) -> list[Finding]:
    """What a configuration asks for that engines do not do, or do wrongly. DoRA is a matter of policy, not here."""
    return [*_bias(config), *_features(config), *_init(config), *_saved(config), *_alphas(config)]


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


def _saved(config: AdapterConfig) -> list[Finding]:
    others = sorted(set(config.modules_to_save or ()) - _MODULES_TO_SAVE)
    remedy = "train it without modules_to_save, or merge those modules into a base of their own"
    return [
        Finding("unsupported_modules_to_save", "modules_to_save", shown(name), "classifier or score", remedy)
        for name in others
    ]


def _alphas(config: AdapterConfig) -> list[Finding]:
    alphas = {"lora_alpha": config.lora_alpha}
    alphas |= {f"alpha_pattern.{name}": value for name, value in (config.alpha_pattern or {}).items()}
    remedy = "save the alpha that it was trained with; with 0 it would answer as the base model does"
    return [
        Finding("zero_alpha", key[:300], "0", "another number", remedy) for key, value in alphas.items() if value == 0
    ]

"""Policy for preparing an adapter, and limits of a replica. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

# Raised whenever the same policy would make other bytes, so that these get another id.
VERSION = 1
_CHOICES = {"remap": ("auto", "off"), "vision": ("reject", "drop", "keep"), "dora": ("reject", "strip")}


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules by which an adapter is made right: see `spec.prepare` of its record."""

    remap: Literal["auto", "off"] = "auto"
    vision: Literal["reject", "drop", "keep"] = "reject"
    dora: Literal["reject", "strip"] = "reject"
    drop: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """The policy and its version, as they go into the prepared id and the report."""
        choices = {"remap": self.remap, "vision": self.vision, "dora": self.dora}
        drop = {"drop": sorted(set(self.drop))} if self.drop else {}  # ids without it are those of earlier releases
        return {"name": "prepare", "version": VERSION, **choices, **drop}


def policy_of(values: dict[str, Any]) -> Policy:
    """The policy of plain values; unknown names are left out.

    Raises:
        ValueError: a value is none of its choices.
    """
    known = {name: values[name] for name in _CHOICES if name in values}
    for name, value in known.items():
        if value not in _CHOICES[name]:
            raise ValueError(f"prepare.{name} is {value!r}, which is none of {', '.join(_CHOICES[name])}")
    drop = values.get("drop") or ()
    if not isinstance(drop, list | tuple) or not all(isinstance(end, str) and end for end in drop):
        raise ValueError(f"prepare.drop is {drop!r}, which is no list of modules")
    return Policy(**known, drop=tuple(drop))


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """Limits of the replicas; None: no limit is known."""

    max_rank: int | None = None
    target_modules: tuple[str, ...] | None = None


# Modules that engines fuse: an adapter of the parts is served where the whole is, and the other way round.
_PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def target_of(module: str) -> str:
    """Name by which ``--lora-target-modules`` has a module: the last part, or that of all experts together."""
    return "experts" if ".experts." in module else module.rpartition(".")[2]


def is_served(module: str, targets: tuple[str, ...] | None) -> bool:
    """True if an engine started with these ``--lora-target-modules`` applies an adapter's module."""
    if targets is None:
        return True
    name = target_of(module)
    wholes = [whole for whole, parts in _PACKED.items() if name in parts]
    parts = [part for whole in (name, *wholes) for part in _PACKED.get(whole, ())]
    return bool({module, name, *wholes, *parts} & set(targets))

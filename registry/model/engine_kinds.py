"""Traits of engine kinds that force something upon the rest of the product. Pure.

A driver says by itself, at each look, what its engine can (`EngineFacts.swap`) and what it has evidence of. Here stands
only what has to be known where there is no driver: at the admin service, and before a sidecar starts. Which guarantees
a kind does not keep is said in docs/decisions/0022-other-engines.md, in one table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KindTraits:
    """The traits of one kind.

    Attributes:
        asks_for_adapters: something in it asks for an adapter when a request names it. Elsewhere lazy is refused.
        is_single_slot: it answers every request with the one adapter that it has, and without one from the base model;
            its files it reads at the first request, and ends where it cannot. So a second adapter, a placement on some
            replicas and versioned names are refused, and its sidecar is told the highest rank.
        runs: kind of the engine inside it, which applies its adapters; empty: itself.
    """

    asks_for_adapters: bool = False
    is_single_slot: bool = False
    runs: str = ""


_TRAITS = {"vllm": KindTraits(asks_for_adapters=True), "axolotl": KindTraits(is_single_slot=True, runs="vllm")}


def traits_of(kind: str) -> KindTraits:
    """The traits of a kind; one that is not known here has none of them."""
    return _TRAITS.get(kind, KindTraits())


def applying_kind(kind: str) -> str:
    """Kind of the engine that applies the adapters which engines of a kind are given."""
    return traits_of(kind).runs or kind

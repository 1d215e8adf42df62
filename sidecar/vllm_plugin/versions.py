"""Makes vLLM tell two versions of one adapter apart, without which a swap can end the engine.

vLLM's worker collects the adapters of a batch in a set, and compares them by their names. Where requests of the old
version still run beside some of the new one, one of the two is dropped from that set, and nobody makes sure that its
weights are in a slot. If they are not, because other adapters needed the slots, the step fails, and the engine with it.
"""

from __future__ import annotations

from typing import Any

_FIELDS = ("lora_name", "lora_int_id", "lora_path")


def tell_apart(request_class: type[Any]) -> None:
    """Makes instances of vLLM's `LoRARequest` equal only if name, number and path are.

    Raises:
        AttributeError: it is not the class that was read: it has not these fields, or compares otherwise.
    """
    fields = getattr(request_class, "__struct_fields__", ())
    if not set(_FIELDS) <= set(fields):
        raise AttributeError(f"LoRARequest has the fields {fields}, not {_FIELDS}")
    if "__eq__" not in vars(request_class) or "__hash__" not in vars(request_class):
        raise AttributeError("LoRARequest does not compare by its name any more")

    def key(request: Any) -> tuple[object, ...]:  # noqa: ANN401 - a class of vLLM's
        return tuple(getattr(request, field) for field in _FIELDS)

    def equals(self: Any, other: object) -> bool:  # noqa: ANN401 - a class of vLLM's
        return isinstance(other, request_class) and key(self) == key(other)

    def hashed(self: Any) -> int:  # noqa: ANN401 - a class of vLLM's
        return hash(key(self))

    request_class.__eq__ = equals  # type: ignore[assignment] # a class of vLLM's
    request_class.__hash__ = hashed  # type: ignore[assignment] # a class of vLLM's
    if not are_told_apart(request_class):
        raise AttributeError("LoRARequest cannot be made to compare by its number")


def are_told_apart(request_class: type[Any]) -> bool:
    """True if two versions under one name are two members of a set."""
    versions = {request_class("name", number, "/path") for number in (1, 2)}
    return len(versions) == 2

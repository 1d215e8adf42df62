"""Modules that LoRA is really applied to, as vLLM's workers have them.

vLLM lists a module as supported by the end of its name, loads an adapter of it, and may yet run another module: one
that could not be wrapped, or the bare one that still hangs elsewhere in the model. Runs in the workers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

WORKER_METHOD = "loraplane_coverage"
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
# vLLM renames by these; where it has other means, its names cannot be told from outside.
_RENAMES = ("orig_to_new_substr", "orig_to_new_prefix", "orig_to_new_suffix")
_OTHER_RENAMES = ("orig_to_new_renaming", "orig_to_new_regex")


def install(worker_class: Any) -> None:  # noqa: ANN401 - a class of vLLM's
    """Makes `coverage` a method that the engine can be asked to call in each worker."""
    setattr(worker_class, WORKER_METHOD, coverage)


def coverage(worker: Any) -> dict[str, Any]:  # noqa: ANN401 - vLLM's own
    """Modules that one worker applies, in vLLM's own names.

    Raises:
        AttributeError: vLLM is not as it was read.
    """
    manager = worker.model_runner.lora_manager._adapter_manager  # noqa: SLF001 - vLLM tells it nowhere else
    model = manager.model
    return {
        "architecture": type(model).__name__,
        "applied": compressed(applied(manager)),
        "taken": compressed(_taken(manager)),
        "renames": _renames(getattr(model, "hf_to_vllm_mapper", None)),
        "shapes": _by_shape(shapes(manager)),
    }


def merged(workers: list[dict[str, Any]]) -> dict[str, object]:
    """Modules that all workers apply together: each may have other layers."""
    told = {field: sorted({one for worker in workers for one in worker[field]}) for field in ("applied", "taken")}
    # A worker on another host may have an earlier release of the plugin.
    forms = [worker.get("shapes", {}) for worker in workers]
    found = {
        form: sorted({one for each in forms for one in each.get(form, ())}) for form in sorted(set().union(*forms))
    }
    return {"architecture": workers[0]["architecture"], **told, "renames": workers[0]["renames"], "shapes": found}


def shapes(manager: Any) -> dict[str, tuple[int, int]]:  # noqa: ANN401 - vLLM's own
    """Outputs and inputs of the modules that adapters go to, as a checkpoint has them, as far as they are certain.

    Where workers share a module, what one of them says of it may be rounded up to their number, and is left out.
    """
    found: dict[str, tuple[int, int]] = {}
    for name, wrapper in manager.modules.items():
        names = manager.packed_modules.get(name, (name,))
        sizes = _sizes(wrapper.base_layer, len(names))
        if len(sizes) == len(names):
            found.update(zip(names, sizes, strict=True))
    return found


def _sizes(layer: Any, parts: int) -> list[tuple[int, int]]:  # noqa: ANN401 - vLLM's own
    """Of each of so many modules that one layer was packed of; empty: they are not certain."""
    if getattr(layer, "tp_size", 1) != 1:
        return []
    entries, width = getattr(layer, "org_vocab_size", None), getattr(layer, "embedding_dim", None)
    if type(entries) is int and type(width) is int:
        return [(entries, width)]
    outputs, inputs = getattr(layer, "output_size", None), getattr(layer, "input_size", None)
    slices = getattr(layer, "output_sizes", None) if parts > 1 else [outputs]
    if type(inputs) is not int or not isinstance(slices, list) or not all(type(one) is int for one in slices):
        return []
    return [(one, inputs) for one in slices]


def _by_shape(found: dict[str, tuple[int, int]]) -> dict[str, list[str]]:
    """Names by shape, ``256 128``, with ``{0-31}`` for numbers that run through."""
    forms: dict[str, list[str]] = {}
    for name, (outputs, inputs) in found.items():
        forms.setdefault(f"{outputs} {inputs}", []).append(name)
    return {form: compressed(names) for form, names in forms.items()}


def applied(manager: Any) -> set[str]:  # noqa: ANN401 - vLLM's own
    """Names of modules, as adapters have them after renaming, whose matrices change what the engine computes."""
    bypassed = set(_bypassed(manager.model, manager.modules))
    names: set[str] = set()
    for name, wrapper in manager.modules.items():
        if name not in bypassed:
            names.update(manager.packed_modules.get(name, (name,)))
            if type(wrapper).__name__ == "FusedMoE3DWithLoRA":
                names.update((name, f"{name}.base_layer"))
    return names


def _bypassed(model: Any, wrappers: dict[str, Any]) -> Iterator[str]:  # noqa: ANN401 - vLLM's own
    """Wrappers whose bare module is reached past them. A tied head is no way past its embedding."""
    names = {id(wrapper.base_layer): name for name, wrapper in wrappers.items()}
    for parent in model.modules():
        for child_name, child in parent._modules.items():  # noqa: SLF001 - named_children leaves out what comes twice
            name = names.get(id(child))
            if name is not None and parent is not wrappers[name] and child_name != "lm_head":
                yield name


def _taken(manager: Any) -> set[str]:  # noqa: ANN401 - vLLM's own
    """Ends of names that vLLM does not refuse while it reads an adapter."""
    taken: set[str] = set()
    for end in manager.supported_lora_modules:
        taken.update(manager.packed_modules_mapping.get(end, (end,)))
        if end == "experts":
            taken.add(end)
    return taken


def _renames(mapper: Any) -> list[dict[str, str]] | None:  # noqa: ANN401 - vLLM's own
    """By parts, beginnings and ends of names, in vLLM's order; None: it has other means."""
    if mapper is None:
        return [{}, {}, {}]
    if any(getattr(mapper, field, None) for field in _OTHER_RENAMES):
        return None
    return [{old: new for old, new in getattr(mapper, field).items() if new is not None} for field in _RENAMES]


def compressed(names: Iterable[str]) -> list[str]:
    """The names with ``{0-31}`` for numbers that run through."""
    groups: dict[str, list[tuple[int, ...]]] = {}
    for name in names:
        numbers = tuple(int(number) for number in _NUMBER.findall(name))
        groups.setdefault(_NUMBER.sub("#", name), []).append(numbers)
    return sorted(pattern for form, rows in groups.items() for pattern in _patterns(form, sorted(rows)))


def _patterns(form: str, rows: list[tuple[int, ...]]) -> Iterator[str]:
    """The patterns of names of one form: one, if every number of a place goes with all of the others."""
    choices = [sorted(set(place)) for place in zip(*rows, strict=True)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count == len(rows):
        pieces = form.split("#")
        texts = [*map(_ranges, choices), ""]
        yield "".join(piece + text for piece, text in zip(pieces, texts, strict=True))
        return
    for first, several in groupby(rows, key=lambda row: row[0]):
        yield from _patterns(form.replace("#", str(first), 1), [row[1:] for row in several])


def _ranges(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return "{" + ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans) + "}"

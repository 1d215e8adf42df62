"""docs/architectures.md from the results that are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.architectures.families import FAMILIES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architectures.md"
RESULTS = Path(__file__).with_name("results.json")
# Of each family all linear modules alone are one cell: which differ is said below it.
_ALONE = "only "
_COLUMNS = (
    "all-linear", "default", "attention", "mlp", "each alone", "regex", "rslora", "patterns", "old default", "old bare",
    "old doubled", "embedding", "head", "tied embedding", "tied head", "router", "router as stored", "experts each",
    "experts as stored", "experts 3d", "shared experts",
)  # fmt: skip
_UNTOLD = ("engine does not tell",)
_SHORT = {"served": "yes", "prepared": "prepared", "refused": "no", "refused, though right": "no (R)", "unknown": "?"}


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    run = {name: one for name, one in results.items() if "kinds" in one}
    counts = Counter(cell["verdict"] for one in run.values() for cell in one["kinds"].values())
    engines = ", ".join(sorted({one["engine"] for one in run.values()}))
    lacks = {one.name: f" (vLLM's CPU build lacks {one.lacks})" for one in FAMILIES if one.lacks}
    not_run = {name: one["error"] + lacks.get(name, "") for name, one in results.items() if "error" in one}
    missing = sorted({one.name for one in FAMILIES} - results.keys())
    return f"""# Architectures: which matrices of an adapter are served

Written by `make architectures` from tests/architectures: a tiny model with random weights of each architecture,
adapters that PEFT makes for it, each given to {engines or "no engine"} on the CPU, as it is and as a sidecar prepares
it. Full logprobs of three greedy steps after four prompts are compared with transformers and PEFT: at most 2e-3 apart.

{sum(counts.values())} adapters on {len(run)} models: {_counted(counts)}.
Accepted and then served wrongly: {counts["SILENT"]}. Accepted and then refused by the engine: {counts["LOUD"]}.
By itself the engine loads {loaded_wrongly(results)}.

- **yes**: accepted as it is, and right. **prepared**: right once a sidecar has prepared it.
- **no**: refused by `loraplane check`, and so by each sidecar. **no (R)**: refused though the engine serves it rightly.
- **?**: accepted, and not told: the engine computes the base itself otherwise than transformers, or the adapter
  changes too little to see.
- Empty: the model has no such modules, or PEFT does not train them.

"Each alone" is an adapter for each kind of linear module by itself. "Old" are the names of earlier releases: `default`
in the keys, no prefix, a doubled prefix. Experts and routers are named as transformers 5 calls its modules, and where
they differ as the checkpoint calls them; "3d" is what PEFT saves with `target_parameters`. "Shared experts" are the
experts that all tokens go to.

**What stands in.** vLLM computes experts under LoRA with Triton kernels, which need a GPU. Here plain torch computes
them from vLLM's own buffers; names, packing and slicing are vLLM's. DeepSeek and LFM2 run with torch's rotary
embedding: that of vLLM's CPU build computes their bases wrongly. No picture is shown to any model.

| model | {" | ".join(_COLUMNS)} |
|---|{"---|" * len(_COLUMNS)}
{chr(10).join(_row(name, run[name]) for name in run)}

## Refused, and why
{chr(10).join(_refusals(run)) or "Nothing."}

## Asked, the engine says
Without the table, by what the plugin is told in the engine alone, these would be accepted although the engine does
not serve them rightly:

{chr(10).join(_unsaid(run)) or "None."}

## Not run
{chr(10).join(f"- {name}: {error}" for name, error in not_run.items()) or "None."}
{"".join(f"{chr(10)}- {name}: not in the last run" for name in missing)}
"""


def loaded_wrongly(results: Mapping[str, Any]) -> str:
    """What an engine without us takes and answers otherwise than PEFT, in words."""
    cells = [cell for one in results.values() for cell in one.get("kinds", {}).values()]
    wrong = [cell for cell in cells if cell["raw"] in {"wrong", "as the base"}]
    as_base = sum(cell["raw"] == "as the base" for cell in wrong)
    ends = Counter(cell["verdict"] for cell in wrong)
    told = f"{len(wrong)} without a word and answers otherwise than they were trained to"
    told += f", {as_base} of them exactly as the base"
    return f"{told}; {ends['prepared']} of these are prepared, {ends['refused']} refused"


def _counted(counts: Counter[str]) -> str:
    names = ("served", "prepared", "refused", "refused, though right", "unknown")
    return ", ".join(f"{counts[name]} {name}" for name in names)


def _row(name: str, family: Mapping[str, Any]) -> str:
    kinds = family["kinds"]
    cells = (_alone(kinds) if column == "each alone" else _cell(kinds.get(column)) for column in _COLUMNS)
    return f"| {name} ({family['architecture']}) | {' | '.join(cells)} |"


def _cell(one: Mapping[str, Any] | None) -> str:
    return "" if one is None else _SHORT.get(one["verdict"], f"**{one['verdict']}**")


def _alone(kinds: Mapping[str, Any]) -> str:
    found: dict[str, list[str]] = {}
    for kind, one in kinds.items():
        if kind.startswith(_ALONE):
            found.setdefault(_cell(one), []).append(kind.removeprefix(_ALONE))
    if len(found) == 1:
        return next(iter(found))
    most = max(found, key=lambda cell: len(found[cell]), default="")
    return "; ".join([most, *(f"{', '.join(names)}: {cell}" for cell, names in found.items() if cell != most)])


def _refusals(run: Mapping[str, Any]) -> Iterator[str]:
    """By reasons, which kinds of adapters on which models."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, family in run.items():
        for kind, one in family["kinds"].items():
            if one["verdict"].startswith("refused"):
                key = ", ".join(one["reasons"]), f"the engine, raw: {one['raw']}"
                found.setdefault(key, {}).setdefault(kind, []).append(name)
    for (reasons, raw), kinds in sorted(found.items()):
        yield f"- `{reasons}` ({raw}): " + "; ".join(
            f"{kind} of {', '.join(names)}" for kind, names in sorted(kinds.items())
        )


def _unsaid(run: Mapping[str, Any]) -> Iterator[str]:
    for name, family in run.items():
        kinds = [
            kind
            for kind, one in family["kinds"].items()
            if not one.get("asked") and one.get("prepared", one["raw"]) in {"wrong", "as the base", "refused"}
        ]
        silent = [kind for kind, one in family["kinds"].items() if tuple(one.get("asked", ())) == _UNTOLD]
        if silent:
            yield f"- {name}: the engine does not tell"
        elif kinds:
            yield f"- {name}: {', '.join(kinds)}"

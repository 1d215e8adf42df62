"""docs/corpus.md from the corpus: every row, what we say, and what the engine does alone. As a program: writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.corpus.defects import DEFECTS
from tests.corpus.hostile import ARCHIVES, FOLDERS, NAMES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "corpus.md"
VERDICTS = ROOT / "tests" / "corpus" / "verdicts.json"
MODELS = {"llama": "Llama", "qwen2": "Qwen2", "qwen2_5_vl": "Qwen2.5-VL"}


def page() -> str:
    """The whole page."""
    kept = json.loads(VERDICTS.read_text())
    rows = "\n".join(_row(name, said, is_permanent, kept) for name, said, is_permanent in _rows())
    archives = "\n".join(f"| {one.name} | `{one.reason}` | {_lasts(one.permanent)} |" for one in ARCHIVES)
    names = "\n".join(_name_row(number, name, kept) for number, name in enumerate(NAMES))
    return f"""# What is wrong with adapters, who says so, and who does not

Made from the corpus in `tests/corpus` by `make docs`; `tests/corpus/test_verdicts.py` measures the engine anew.
vLLM 0.32.0 on the CPU, tiny models with random weights; an engine that nobody stands before gets each row as it is.
No row ever reaches an engine behind a sidecar. Of Qwen2.5-VL the language model is loaded, without pictures.

"As the undamaged one" is right for a row only if nothing was lost by what is wrong with it: an adapter that says it is
of another kind, or has modules that the base has not, was meant to do something else. What a row with NaN leaves
behind in the engine's memory makes requests for some later adapters fail too, an alpha of 0 among them.

| row | we say | | {" | ".join(MODELS.values())} |
|---|---|---|{"---|" * len(MODELS)}
{rows}

## Archives
The engine reads none. Where one is a source, this is said of it, and nothing is written by a name that stands in it.

| row | we say | |
|---|---|---|
{archives}

## Names
No record, and so no engine, is ever given one of these. The engine alone:

| name | {" | ".join(MODELS.values())} |
|---|{"---|" * len(MODELS)}
{names}
"""


def _rows() -> Iterator[tuple[str, str, bool]]:
    yield from ((one.name, one.reason, one.permanent) for one in DEFECTS)
    yield from ((one.name, one.reason, one.permanent) for one in FOLDERS)


def _row(name: str, said: str, is_permanent: bool, kept: dict[str, dict[str, str]]) -> str:
    verdicts = (kept[model].get(name) or _untried(name, model) for model in MODELS)
    return f"| {name} | `{said}` | {_lasts(is_permanent)} | {' | '.join(verdicts)} |"


def _untried(name: str, model: str) -> str:
    """A pipe costs an engine, so one is enough; a device would take all memory."""
    return "never answers" if name.startswith("fifo") and model == "llama" else "not tried"


def _lasts(is_permanent: bool) -> str:
    return "for good" if is_permanent else "for now"


def _name_row(number: int, name: str, kept: dict[str, dict[str, str]]) -> str:
    shown = ascii(name) if len(name) < 40 else f"{name[0]!r} {len(name)} times"
    return f"| `{shown}` | {' | '.join(kept[model][f'name_{number}'] for model in MODELS)} |"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()

"""docs/corpus.md from the corpus: every defect, our verdict, and the engine's alone. As a program: writes it."""

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
    return f"""# Defects of adapters: our verdict, and vLLM's alone

Made from the corpus in `tests/corpus` by `make docs`; `tests/corpus/test_verdicts.py` measures the engine anew.
vLLM 0.32.0 on the CPU, tiny models with random weights. Each row was given to an engine without a sidecar, as it is.
A sidecar lets none of them reach its engine. Of Qwen2.5-VL the language model is loaded, without pictures.

"As the undamaged one" is a right answer only if the defect lost nothing: an adapter that declares another
kind, or has modules that the base model lacks, was meant to do something else. A row with NaN leaves
values in the engine's memory that make requests for some later adapters fail too, an alpha of 0 among them.

| defect | our verdict | | {" | ".join(MODELS.values())} |
|---|---|---|{"---|" * len(MODELS)}
{rows}

## Archives
The engine reads no archives. A sidecar gives this verdict on one as a source. No file gets a name from an archive.

| defect | our verdict | |
|---|---|---|
{archives}

## Names
No record, and so no engine, ever gets one of these names. The engine alone:

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

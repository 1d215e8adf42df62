"""docs/wrong-inputs.md from the table of wrong command lines. As a program: writes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "wrong-inputs.md"
TABLE = ROOT / "tests" / "integration" / "cli" / "wrong_inputs.yaml"


@dataclass(frozen=True)
class WrongInput:
    """A wrong command line: what it says, and in that the part that is wrong and what to do."""

    line: str
    exit: int
    field: str
    remedy: str
    message: str


@cache
def table() -> tuple[dict[str, str], list[WrongInput]]:
    """The files that the command lines name, and the command lines."""
    value = yaml.safe_load(TABLE.read_text())
    return value["files"], [WrongInput(**one) for one in value["inputs"]]


def page() -> str:
    """The whole page."""
    files, inputs = table()
    rows = "\n".join(f"| `{_cell(one.line)}` | {one.exit} | {_cell(one.message)} |" for one in inputs)
    texts = "\n".join(f"`{name}`:\n\n```yaml\n{text}```\n" for name, text in files.items() if text)
    return f"""# Wrong inputs

Made from tests/integration/cli/wrong_inputs.yaml by `make docs`. A test runs each line against a real admin service
whose pool `dev`, of the base model `tiny`, holds the adapter `sql`, and compares exit code and message. Each message
names what is wrong and what to do, and nothing is changed. [Errors](errors.md) lists the reasons and the exit codes.

`{{folder}}` stands for the working directory, `{{etag}}` for the adapter's present etag. Each message begins with
`error:`.

| `loraplane …` | exit | message |
|---|---|---|
{rows}

## The files

`empty.yaml` is empty, `folder` is a folder without files, and what is called `nosuch` is not there.

{texts}"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()

"""docs/wrong-inputs.md from the table of wrong command lines. As a program: writes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "wrong-inputs.md"
TABLE = ROOT / "tests" / "integration" / "cli" / "wrong_inputs.yaml"
# Why the program itself refuses something, whatever the admin service is like.
_OWN = (
    *("USAGE", "INVALID_MANIFEST", "DUPLICATE_NAME", "SOURCE_REFUSED", "SOURCE_UNREADABLE", "UNREADABLE_RECORD"),
    *("STACK_NOT_FOUND", "TENANT_NOT_FOUND"),
)


@dataclass(frozen=True)
class WrongInput:
    """A wrong command line: what it says, and in that the part that is wrong and what to do."""

    line: str
    exit: int
    field: str
    remedy: str
    message: str

    @property
    def is_ours(self) -> bool:
        """Whether the program refuses it by itself."""
        return self.message.partition(":")[0] in _OWN


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

Made from tests/integration/cli/wrong_inputs.yaml by `make docs`. A test runs each line, with a real admin service where
that is what refuses it, whose pool `dev`, of the base model `tiny`, holds the adapter `sql`, and compares exit code and
message. Each message names what is wrong and what to do, and nothing is changed. [Errors](errors.md) lists the reasons
and the exit codes.

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

"""docs/coming-from.md from the table of import kinds: what becomes of each field. As a program: writes it."""

from __future__ import annotations

from pathlib import Path

from registry.formats.kinds import KINDS
from registry.formats.shapes import FieldMeaning, FieldRow, ImportKind, ImportShape

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
_HEAD = """# Coming from another system

`loraplane import KIND FILE` prints adapters of another system as [manifests](manifests.md). It reads a file, standard
input (`-`) or a folder, and asks nobody. `make docs` writes this page from `registry/formats/kinds.py`.

```
{get} | loraplane import aibrix - --pool qwen-prod > adapters.yaml
loraplane diff -f adapters.yaml
loraplane apply -f adapters.yaml --wait
```

- Each field that does not map is named on standard error, with its path and never with its value, which may be a
  secret. `--strict` exits 1 if there is any, or if an adapter is left out.
- An adapter is left out where `apply` would refuse it: it says no source, or one that sidecars cannot read. `--source
  URI` says where the files of those are that say nothing, `{{name}}` standing for the adapter's name. `--rewrite
  FROM=TO` puts another beginning to sources: a mounted folder (`--rewrite pvc://models/=file:///mnt/models/`), or the
  commit that a hub's source has to name (`--rewrite hf://acme/sql=hf://acme/sql@` and 40 hexadecimal digits).
- `--pool` says the pool of all, `--pool-of BASE=POOL` that of the adapters of a base model. Without either the pool
  is called as the base model is, in lower case and without its organisation: `meta-llama/Llama-3.1-8B` gives
  `llama-3.1-8b`. Create it first, or `apply` says that there is none. Adapters of several pools need `apply
  --no-atomic`.
- Nothing is printed where a document is of another kind, an adapter stands twice, a field has another type, or a path
  leads out of its tree: one error says which (exit 4).
- What a system wants to be gone is printed on standard error, as the command that deletes it here.
- Who loads adapters there has to stop before LoraPlane takes over the same engine: two that load and unload one name
  undo each other. Adapters that LoraPlane did not load are left alone (guarantee R11).
"""


def page() -> str:
    """The page."""
    return _HEAD.format(get=KINDS["aibrix"].get) + "".join(map(_section, KINDS.values()))


def _section(kind: ImportKind) -> str:
    remarks = "".join(f"{one}\n" for one in kind.remarks)
    get = f"```\n{kind.get}\n```\n" if kind.get else ""
    tables = "".join(_table(one) for one in kind.shapes if not one.embedded)
    return f"\n## `{kind.name}`\n{kind.system}.\n{remarks}{get}\n{tables}"


def _table(shape: ImportShape) -> str:
    what = f"Of a `{shape.kind}`" if shape.kind else f"Below `{shape.root}`"
    rows = "".join(f"| `{one.path}` | {_meaning(one)} | {_remark(one)} |\n" for one in shape.rows)
    return f"{what}:\n\n| field | becomes | |\n|---|---|---|\n{rows}\n"


def _meaning(row: FieldRow) -> str:
    is_ours = row.meaning not in {FieldMeaning.PASSED, FieldMeaning.UNMAPPED, FieldMeaning.ENABLED}
    return f"`{row.meaning}`" if is_ours else str(row.meaning)


def _remark(row: FieldRow) -> str:
    values = " or ".join(f"`{one}`" for one in row.only)
    is_named = row.meaning is FieldMeaning.UNMAPPED
    only = f"{values} needs no word" if is_named else f"{values}; with another the adapter is left out"
    return "; ".join(part for part in (row.remark, only if values else "") if part)


if __name__ == "__main__":
    PAGE.write_text(page())

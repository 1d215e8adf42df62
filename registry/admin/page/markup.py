"""Markup of the page as the server renders it, for no script. Pure.

Every text goes through `html.escape`: names, labels and notes are somebody's words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from registry.admin.page.browsers import BELOW
from registry.admin.rpc.encode_residency import Document
from registry.model.names import label_text

# Rows of one table; what is not settled stands first.
MAX_ROWS = 500
_ORDER = {"Halted": 0, "Degraded": 1, "Progressing": 2, "": 3, "Healthy": 4, "Disabled": 5}
_OF_ADAPTERS = ("Adapter", "Generation", "State", "Serving", "Why", "Labels")
_OF_REPLICAS = ("Replica", "Ready", "Engine", "Served", "Pending", "Failed", "Labels")
# What app.js takes: a browser need not have read it to ask for them.
_MODULES = ("adapter.js", "dom.js", "fleet.js", "now.js", "replica.js", "stream.js")
_PRELOADS = "\n".join(f'<link rel="modulepreload" href="{BELOW}{name}">' for name in _MODULES)
_HEAD = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>LoraPlane</title>
<link rel="icon" href="{BELOW}icon.svg">
<link rel="stylesheet" href="{BELOW}page.css">
{_PRELOADS}
<script type="module" src="{BELOW}app.js"></script>
</head>
"""


@dataclass(frozen=True, slots=True)
class PoolTables:
    """Rows of a pool; `replicas` None: the caller may not see them."""

    name: str
    adapters: Sequence[Document]
    replicas: Sequence[Document] | None = None
    absent: Sequence[Document] = field(default=())


def order_of(row: Document) -> tuple[int, str]:
    """Place of an adapter in a table: what is not settled first, then by name."""
    return _ORDER.get(row["state"], 3), row["name"].lower()


def sign_in(message: str = "") -> str:
    """The page for somebody who has shown nothing, or nothing that is believed; `message` says why."""
    told = f'<p class="error" role="alert">{escape(message)}</p>' if message else ""
    return _document(
        f"""<form method="post" action="/" class="sign-in" id="sign-in">
<h1>LoraPlane</h1>
{told}<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="off" required>
<button type="submit">Show the fleet</button>
<p>The token that <code>loraplane --token-file</code> takes. This page forgets it with the tab.</p>
</form>""",
        asks="yes",
    )


def refusal(message: str) -> str:
    """The page in place of one that cannot be shown."""
    return _document(f'<h1>LoraPlane</h1>\n<p class="error" role="alert">{escape(message)}</p>', asks="no")


def fleet(pools: Sequence[PoolTables], at: str) -> str:
    """The fleet as it is at a time."""
    tables = "".join(map(_pool, pools)) or "<p>There is no pool, or none that you may see.</p>"
    told = f"<p>As of {escape(at)}. Load the page again to see what changed since.</p>"
    return _document(f"<h1>Fleet</h1>\n{told}\n{tables}", asks="no")


def _document(body: str, *, asks: str) -> str:
    return f'{_HEAD}<body data-asks="{asks}">\n<main id="page">\n{body}\n</main>\n</body>\n</html>\n'


def _pool(pool: PoolTables) -> str:
    adapters = sorted(pool.adapters, key=order_of)
    parts = [f"<h2>Pool {escape(pool.name)}</h2>\n"]
    parts.append(_table(f"Adapters of {pool.name}", _OF_ADAPTERS, map(_adapter, adapters[:MAX_ROWS])))
    if len(adapters) > MAX_ROWS:
        more = len(adapters) - MAX_ROWS
        parts.append(f"<p>{more} more, all of them later in this order: <code>loraplane get adapters</code>.</p>\n")
    if pool.replicas is not None:
        rows = [*map(_replica, pool.replicas[:MAX_ROWS]), *map(_absent, pool.absent[:MAX_ROWS])]
        parts.append(_table(f"Replicas of {pool.name}", _OF_REPLICAS, rows))
    return "".join(parts)


def _table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>\n" for row in rows)
    if not body:
        return f"<p>{escape(caption)}: none.</p>\n"
    return (
        f'<div class="scrolls" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def _adapter(row: Document) -> Sequence[object]:
    share = f"{row['serving']}/{row['replicas']}" + (f" of {row['of']}" if row["of"] > row["replicas"] else "")
    why = [row["halted"], *(f"{count} × {reason}" for reason, count in row["reasons"].items())]
    told = "; ".join(filter(None, why)) or row["note"]
    return row["name"], row["generation"], row["state"], share, told, label_text(row["labels"])


def _replica(row: Document) -> Sequence[object]:
    ready = "leaving" if row["leaving"] else "yes" if row["ready"] else "no"
    numbers = (row.get(name, "-") for name in ("served", "pending", "failed"))
    return row["name"], ready, row.get("engine", "-"), *numbers, label_text(row["labels"])


def _absent(row: Document) -> Sequence[object]:
    seen = f"gone, last seen {row['last_seen']}" if row["last_seen"] else "just gone"
    return row["name"], seen, row["engine"] or "-", "-", "-", "-", label_text(row["labels"])

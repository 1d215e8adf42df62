"""Lines of a table: a row is one line, and a name is never cut. Pure.

On a terminal, what people read (reasons, notes) is cut with … where a row would be longer than a line; where that does
not suffice the row runs on, as kubectl's do, and what people read gets what its last line has left. So no cell is ever
folded, and names, addresses and digests can be copied whole. A file or a pipe has every cell whole.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import accumulate

# Columns of words for people, cut before a row runs on; all of it stands in `-o wide` on a pipe, and in `describe`.
PROSE = frozenset({"CHANGED", "REASONS", "REASON", "NOTE", "WHY", "MESSAGE", "BASE MODELS", "REPLICAS"})
# The least that is left of a cell that is cut, in columns of the terminal.
_LEAST = 12
# Of what says who did what, an old and a new value.
_LEAST_OF = {"CHANGED": 40, "WHY": 40}
_GAP = "  "
# All printable letters before this one take one column; from here on some take none or two.
_FIRST_OF_ODD_WIDTH = "\u0300"
_BOLD, _DIM, _GREEN, _YELLOW, _RED, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
# Colours of cells in columns that say how something is.
_COLOURS = {
    "STATE": {
        **dict.fromkeys(("Healthy", "serving"), _GREEN),
        **dict.fromkeys(("Progressing", "pending", "Disabled"), _YELLOW),
        **dict.fromkeys(("Degraded", "Halted", "failed", "unknown"), _RED),
    },
    "READY": {"yes": _GREEN, "no": _RED},
}


@dataclass(frozen=True, slots=True)
class Paper:
    """Medium of a table: its width in columns (None: a file or a pipe, which has none), and whether it shows styles.

    `is_screen`: it is drawn anew again and again, so that rows are cut: what runs on would push others out.
    """

    width: int | None = None
    has_styles: bool = False
    is_screen: bool = False


def table_lines(
    titles: Sequence[str], rows: Sequence[Sequence[str]], paper: Paper, dimmed: Container[int] = ()
) -> list[str]:
    """The head and the rows, each in one line, those with these numbers dimmed. Cells are printable."""
    widths = _widths(titles, [titles, *rows], paper)
    if paper.is_screen and paper.width is not None:
        ends = accumulate(widths, lambda end, width: end + len(_GAP) + width)
        widths = [max(0, width - max(0, end - paper.width)) for width, end in zip(widths, ends, strict=True)]
    head = _line(titles, titles, widths, Paper())
    styled_head = f"{_BOLD}{head}{_PLAIN}" if paper.has_styles else head
    return [
        styled_head,
        *(_row(titles, row, widths, paper, is_dim=number in dimmed) for number, row in enumerate(rows)),
    ]


def _widths(titles: Sequence[str], rows: Sequence[Sequence[str]], paper: Paper) -> list[int]:
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    if paper.width is None:
        return widths
    gaps = len(_GAP) * (len(widths) - 1)
    prose = {
        place: max(_LEAST_OF.get(title, _LEAST), width_of(title))
        for place, title in enumerate(titles)
        if title in PROSE
    }
    shortest = gaps + sum(min(width, prose.get(place, width)) for place, width in enumerate(widths))
    lines = 1 if paper.is_screen else max(1, -(-shortest // max(1, paper.width)))
    spare = lines * paper.width - sum(widths) - gaps
    while spare < 0 and (widest := max(prose, key=widths.__getitem__, default=None)) is not None:
        least = prose[widest]
        if widths[widest] <= least:
            break
        rest = [widths[place] for place in prose if place != widest]
        # At once down to the next widest, which is then cut alike.
        step = min(-spare, widths[widest] - least, max(1, widths[widest] - max(rest, default=0)))
        widths[widest] -= step
        spare += step
    return widths


def _row(titles: Sequence[str], row: Sequence[str], widths: Sequence[int], paper: Paper, *, is_dim: bool) -> str:
    if is_dim and paper.has_styles:
        return f"{_DIM}{_line(titles, row, widths, Paper())}{_PLAIN}"
    return _line(titles, row, widths, paper)


def _line(titles: Sequence[str], row: Sequence[str], widths: Sequence[int], paper: Paper) -> str:
    cells = [cut(cell, width) for cell, width in zip(row, widths, strict=True)]
    last = max((place for place, cell in enumerate(cells) if cell), default=0)
    padded = [
        _styled(title, cell, paper) + ("" if place == last else " " * (width - width_of(cell)))
        for place, (title, cell, width) in enumerate(zip(titles, cells, widths, strict=True))
    ]
    return _GAP.join(padded[: last + 1])


def _styled(title: str, cell: str, paper: Paper) -> str:
    colour = _COLOURS.get(title, {}).get(cell) if paper.has_styles else None
    return f"{colour}{cell}{_PLAIN}" if colour else cell


def width_of(text: str) -> int:
    """Number of columns of a terminal that a text takes."""
    if text.isascii() or max(text) < _FIRST_OF_ODD_WIDTH:
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - for such letters alone

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """The text, or as much of its beginning as `width` columns hold, and … for the rest."""
    if width_of(text) <= width:
        return text
    if width == 0:
        return ""
    short = text[: width - 1]
    while width_of(short) > width - 1:
        short = short[:-1]
    return f"{short}…"

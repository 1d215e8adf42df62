"""``python -m tests.support.site``: lays the pages of the documentation out for mkdocs, which `make site` then runs.

Pages keep their places, so that links hold: README.md is the first page, and files elsewhere that a page names are
laid beside. What GitHub takes and Python's Markdown does not is written so that both do.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "pages"
RECORDS = "docs/decisions"
_LINK = re.compile(r"(\[[^\]\n]+\])\(([^)\s]+)\)")
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_ITEM = re.compile(r"^(?:[-*] |\d+\. )")


def lay_out(root: Path, into: Path) -> None:
    """Replaces `into` by the pages of a tree."""
    shutil.rmtree(into, ignore_errors=True)
    beside = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for page in [*beside, *sorted((root / "docs").rglob("*.md"))]:
        place = into / ("index.md" if page == root / "README.md" else page.relative_to(root))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_page(page, root, into))


def navigation(settings: str, root: Path) -> str:
    """The settings of mkdocs, with the records of decisions in the place of their folder."""
    names = sorted((path.name for path in (root / RECORDS).glob("*.md")), key=lambda name: (name != "README.md", name))
    listed = "".join(f"          - {RECORDS}/{name}\n" for name in names)
    whole = settings.replace(f"      - Decisions: {RECORDS}/\n", f"      - Decisions:\n{listed}")
    return whole.replace("_dir: build/", "_dir: ")  # they are written into that folder


def _page(page: Path, root: Path, into: Path) -> str:
    """A page whose links lead to what is laid out."""
    lines: list[str] = []
    is_code = False
    for line in page.read_text().splitlines():
        is_code ^= bool(_FENCE.match(line))
        if is_code or _FENCE.match(line) or line.startswith("    "):
            lines.append(line)
            continue
        if _ITEM.match(line) and lines and lines[-1].strip() and not _ITEM.match(lines[-1]) and lines[-1][0] != " ":
            lines.append("")  # a list in the middle of a paragraph
        lines.append(_LINK.sub(lambda link: _linked(link, page, root, into), line))
    return "\n".join(lines) + "\n"


def _linked(link: re.Match[str], page: Path, root: Path, into: Path) -> str:
    label, target = link.groups()
    path, _, anchor = target.partition("#")
    if "://" in target or not path or path.startswith("/"):
        return link[0]
    found = (page.parent / path).resolve()
    place = found.relative_to(root.resolve())
    if place == Path("README.md"):
        return link[0].replace("README.md", "index.md")
    if place == Path(RECORDS):
        return f"{label}({path.rstrip('/')}/README.md)"
    if found.is_dir():  # of the source, which the site does not show
        return f"{label[1:-1]} (`{place}/`)"
    if found.suffix != ".md" and found.exists():
        (into / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(found, into / place)
    return f"{label}({path}{'#' if anchor else ''}{anchor})"


def main() -> None:
    """Entry point."""
    lay_out(ROOT, PAGES)
    (PAGES.parent / "mkdocs.yml").write_text(navigation((ROOT / "mkdocs.yml").read_text(), ROOT))


if __name__ == "__main__":
    main()

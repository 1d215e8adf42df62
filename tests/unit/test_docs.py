"""Pages: links lead somewhere, code that is named exists, and the README stays short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A record tells of the code at its time.
PRESENT = [page for page in PAGES if page.parent.name != "decisions" and page.name != "CHANGELOG.md"]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:registry|sidecar|bench|proto|compose)/[\w/.-]*)")
NAMED = re.compile(r"`((?:registry|sidecar)/[\w/]+\.py): ([\w.]+)`")
DECISION = re.compile(r"\[[Dd]ecision (\d+)\]\([^)]*?(\d{4})-[^)]*\)")
# Words of our own for what the field has a word for; docs/glossary.md has those.
OLD_WORDS = re.compile(r"\b(?:desk|board|sight|chance|judge[ds]?|keeper|upkeep|lodging|dialect|shelf)\b", re.IGNORECASE)


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Relative links of a page: the file that each leads to, and the heading in it, empty where none is named."""
    for link in LINK.findall(page.read_text()):
        if not re.match(r"[a-z]+:", link):
            file, _, heading = link.partition("#")
            yield (page.parent / file if file else page), heading


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


def is_broken(file: Path, heading: str) -> bool:
    return not file.exists() or (bool(heading) and heading not in anchors(file))


def test_every_relative_link_leads_somewhere():
    broken = {
        f"{page.name}: {file.name}#{heading}"
        for page in PAGES
        for file, heading in links(page)
        if is_broken(file, heading)
    }
    assert broken == set()


def test_a_decision_is_linked_under_its_own_number():
    for page in PAGES:
        assert {
            (number, f"{int(file)}") for number, file in DECISION.findall(page.read_text()) if int(number) != int(file)
        } == set(), page


def test_every_decision_that_code_or_a_page_mentions_is_recorded():
    recorded = {int(page.name[:4]) for page in (ROOT / "docs" / "decisions").glob("0*.md")}
    code = [path for room in ("registry", "sidecar", "tests", "bench", "proto") for path in (ROOT / room).rglob("*.py")]
    mentioned = {
        int(number) for path in [*PAGES, *code] for number in re.findall(r"\bdecision (\d+)", path.read_text())
    }
    assert mentioned <= recorded


def test_code_that_a_page_names_exists():
    paths = {(page.name, path) for page in PRESENT for path in PATH.findall(page.read_text())}
    assert {one for one in paths if not (ROOT / one[1].rstrip(".")).exists()} == set()
    assert {one for page in PRESENT for one in NAMED.findall(page.read_text()) if not _defines(*one)} == set()


def _defines(path: str, name: str) -> bool:
    text = (ROOT / path).read_text()
    return all(re.search(rf"\b(?:def|class) {part}\b", text) for part in name.split("."))


def test_pages_use_the_words_of_the_glossary():
    assert {(page.name, word) for page in PAGES for word in OLD_WORDS.findall(page.read_text())} == set()


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200

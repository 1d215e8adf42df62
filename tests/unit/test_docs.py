"""Pages: links lead somewhere, what is named exists, and what is made from the code is what the code says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from registry.model.errors import Reason
from registry.model.replica_reasons import RETRY_RULES, RetryClass
from tests.corpus.defects import DEFECTS
from tests.corpus.hostile import FOLDERS
from tests.support import coming_from_page, corpus_page, errors_page, guarantees, roles_page

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
    return {anchor(one) for one in headings}


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_relative_link_leads_somewhere():
    found = [(page, *link) for page in PAGES for link in links(page)]
    assert [one for one in found if not one[1].exists() or (one[2] and one[2] not in anchors(one[1]))] == []


def test_a_decision_is_linked_under_its_own_number_and_recorded():
    linked = {(page, *one) for page in PAGES for one in DECISION.findall(page.read_text())}
    assert {one for one in linked if int(one[1]) != int(one[2])} == set()
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


def test_the_recipe_for_trl_is_shown_as_it_is_tested():
    """Word for word of the example, which `make training` plays."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/training.md").read_text(), re.DOTALL)
    (shown,) = [block for block in blocks if "FleetRollouts" in block]
    assert shown in (ROOT / "docs/examples/grpo.py").read_text()


def test_pages_use_the_words_of_the_glossary():
    assert {(page.name, word) for page in PAGES for word in OLD_WORDS.findall(page.read_text())} == set()


def test_each_page_is_in_the_tree_of_the_site():
    """Its settings are mkdocs.yml; records of decisions are added by tests.support.site."""
    tree = re.findall(r"^ +- (?:[\w ]+: )?((?:docs/)?[\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [
        str(page.relative_to(ROOT)) for page in PAGES if page.parent.name != "decisions" and page.name != "README.md"
    ]
    assert sorted(tree) == sorted([*pages, "index.md"])


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


@pytest.mark.parametrize("made", [coming_from_page, corpus_page, errors_page, guarantees, roles_page])
def test_a_page_that_is_made_from_the_code_is_current(made):
    """Fails when a row, a verdict, a reason, an exit code or a test was added, moved or removed: make docs."""
    assert made.PAGE.read_text() == made.page()


def test_each_guarantee_that_is_promised_is_checked_by_a_test_and_no_other():
    assert (guarantees.promised().keys(), len(guarantees.promised())) == (guarantees.cited().keys(), 44)


def test_every_row_of_the_corpus_was_tried_on_every_architecture_but_for_two():
    """The two are a pipe, which is tried once on its own, and a device that never ends."""
    kept = json.loads(corpus_page.VERDICTS.read_text())
    rows = {one.name for one in (*DEFECTS, *FOLDERS)}
    for model in corpus_page.MODELS:
        assert rows - set(kept[model]) == {"fifo_adapter_config.json", "link_to_a_device"}


def test_every_reason_is_used_and_says_whether_to_repeat_it_what_it_waits_for_and_which_command_helps():
    """R8: of the admin service in a row of its own, of replicas with those of the same rule."""
    assert set(errors_page.MEANING) == set(Reason) == set(errors_page.AGAIN)
    told = [line.split("|") for line in errors_page.page().splitlines() if line.startswith("| `")]
    assert [row for row in told if not row[3].strip()] == [], "a reason that nothing raises is a promise without a case"
    for reason in (*Reason, *RETRY_RULES):
        (row,) = (row for row in told if f"`{reason}`" in row[1])
        again, waits_for, command = (part.strip() for part in row[-4:-1])
        assert (again in {*RetryClass}, waits_for != "", command != "") == (True, True, True), row


def test_every_fault_is_played_by_tests_that_exist():
    table = (ROOT / "docs/faults.md").read_text().partition("| fault | expected | played by |")[2].partition("\n\n")[0]
    faults, named = set[int](), set[str]()
    for line in table.splitlines()[2:]:
        fault, _, played_by = line.strip("| ").split(" | ")
        span = re.match(r"(\d+) to (\d+) ", fault)
        first = [int(one) for one in re.findall(r"\d+", re.match(r"\d+(, \d+)*", fault)[0])]
        faults |= {*range(int(span[1]), int(span[2]) + 1)} if span else {*first}
        named |= {*re.findall(r"\w+/[\w/]+\.py|\w+/\w+/(?=,)", played_by)}
    assert (faults, len(named) > 30) == ({*range(1, 41)}, True)
    assert {path for path in named if not (ROOT / "tests" / path).exists()} == set()


def alerts() -> list[dict[str, Any]]:
    rules = yaml.safe_load((ROOT / "compose/prometheus/alerts.yml").read_text())
    return [rule for group in rules["groups"] for rule in group["rules"]]


def test_each_alert_is_in_the_operations_page_and_the_other_way_round():
    """Whoever is woken by an alert finds what to do; names stand there in brackets."""
    lists = re.findall(r"\[((?:[A-Z]\w+)(?:[ ,\n][^\]]*)?)\](?!\()", (ROOT / "docs/operations.md").read_text())
    told = {name for one in lists for name in re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]*)+\b", one)}
    assert {rule["alert"] for rule in alerts()} == told


def test_each_alert_links_to_the_section_that_names_it():
    """Two alerts of etcd are told in one section by the share that is used."""
    page = ROOT / "docs/operations.md"
    sections = re.split(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    told = {anchor(heading): text for heading, text in zip(sections[1::2], sections[2::2], strict=True)}
    for rule in alerts():
        file, _, heading = rule["annotations"]["runbook_url"].partition("#")
        assert (file, re.search(rf"\b{rule['alert']}\b", told.get(heading, ""))) != (file, None), rule["alert"]
        assert file == "docs/operations.md"

"""The documentation as a site: every page is in its tree, no link is dead, and each release has its own pages."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.checkout import commit_all, git
from tests.support.site import LATEST, MKDOCS, ROOT, SiteRefused, make_site, newest, switch, versions

SETTINGS = (ROOT / "mkdocs.yml").read_text()
NAMES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/a.md", "docs/decisions/README.md")
TREE = "nav: [index.md, CONTRIBUTING.md, CHANGELOG.md, docs/a.md, docs/decisions/README.md]\n"
pytestmark = pytest.mark.skipif(not MKDOCS.exists(), reason="make .venv-site/.installed")


class Links(HTMLParser):
    """What a page leads to, and loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.loaded: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        (self.found if tag == "a" else self.loaded).update(filter(None, (told.get("href"), told.get("src"))))


def links(page: Path) -> Links:
    parser = Links()
    parser.feed(page.read_text())
    return parser


def is_there(page: Path, target: str) -> bool:
    place = page.parent / unquote(urlsplit(target).path)
    return (place / "index.html" if target.partition("#")[0].endswith(("/", ".", "..")) else place).is_file()


def small(root: Path, changelog: str) -> Path:
    """A tree with a page or two, committed in a repository of its own."""
    (root / "docs/decisions").mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (root / name).write_text("# A page\n")
    (root / "CHANGELOG.md").write_text(changelog)
    (root / "mkdocs.yml").write_text(SETTINGS.partition("nav:\n")[0] + TREE)
    git(root, "init", "--quiet")
    commit_all(root)
    return root


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """That of this tree."""
    into = tmp_path_factory.mktemp("made") / "site"
    make_site(ROOT, into)
    return into


def test_the_site_is_whole(site):
    found = json.loads((site / LATEST / "search/search_index.json").read_text())
    assert {"docs/operations/", "docs/support/", "CHANGELOG/"} <= {one["location"] for one in found["docs"]}
    assert "<li><code>--access</code> names the file" in re.sub(
        r"\s+", " ", (site / LATEST / "docs/deployment/index.html").read_text()
    )
    assert (site / LATEST / "compose/compose.yaml").exists()


def test_each_link_of_the_site_leads_to_something(site):
    pages = [page for page in site.rglob("*.html") if page.name != "404.html" and LATEST not in page.parts]
    assert len(pages) > 60
    dead = {}
    for page in pages:
        told = links(page)
        own = {one for one in told.found | told.loaded if not urlsplit(one).scheme and urlsplit(one).path}
        dead[page] = {target for target in own if not is_there(page, target)}
    assert {page.relative_to(site): found for page, found in dead.items() if found} == {}


def test_the_switch_has_each_release_and_leads_to_its_pages(site):
    entries = json.loads((site / "versions.json").read_text())
    assert [one["version"] for one in entries] == versions((ROOT / "CHANGELOG.md").read_text())
    assert all((site / one["version"] / "docs/operations/index.html").is_file() for one in entries)
    (newest,) = (one["version"] for one in entries if one["aliases"] == [LATEST])
    assert (site / LATEST).resolve() == (site / newest).resolve()
    assert re.search(r"url=latest/\"", (site / "index.html").read_text())
    # The theme shows a switch to pages that say so, and reads versions.json beside their folder.
    (said,) = re.findall(r'"version": (\{[^}]*\})', (site / newest / "docs/operations/index.html").read_text())
    assert json.loads(said) == {"alias": True, "default": LATEST, "provider": "mike"}


def test_earlier_releases_have_the_pages_of_their_tags(tmp_path):
    root = small(tmp_path / "root", "# Changelog\n\n## [1.0.0] - 2026-01-01\n")
    (root / "docs/a.md").write_text("# As it was\n")
    commit_all(root)
    git(root, "tag", "v1.0.0")
    (root / "docs/a.md").write_text("# As it is\n")
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## [1.1.0] - 2026-02-01\n\n## [1.0.0] - 2026-01-01\n")
    make_site(root, tmp_path / "site")
    entries = json.loads((tmp_path / "site/versions.json").read_text())
    assert [(one["version"], one["aliases"]) for one in entries] == [("1.1.0", [LATEST]), ("1.0.0", [])]
    for name, said in (("1.0.0", "As it was"), ("1.1.0", "As it is"), (LATEST, "As it is")):
        assert said in (tmp_path / "site" / name / "docs/a/index.html").read_text()


def test_what_is_not_released_is_not_the_latest():
    names = versions("# Changelog\n\n## [Unreleased]\n\n## [1.0.0] - 2026-01-01\n")
    assert [(one["version"], one["aliases"]) for one in switch(names)] == [("unreleased", []), ("1.0.0", [LATEST])]
    assert newest(["unreleased"]) == "unreleased"


def test_a_release_without_its_tag_fails_and_leaves_the_site_as_it_was(tmp_path):
    root = small(tmp_path / "root", "# Changelog\n\n## [1.1.0] - 2026-02-01\n\n## [1.0.0] - 2026-01-01\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/versions.json").write_text("[]")
    with pytest.raises(SiteRefused, match=r"names 1\.0\.0, and there is no tag v1\.0\.0 .*: git fetch --tags"):
        make_site(root, tmp_path / "site")
    assert (tmp_path / "site/versions.json").read_text() == "[]"


def test_dead_links_and_pages_out_of_the_tree_fail(tmp_path):
    root = small(tmp_path / "root", "# Changelog\n\n## [1.0.0] - 2026-01-01\n")
    (root / "docs/b.md").write_text("# A page\n")
    (root / "README.md").write_text("# A page\n\n[x](docs/absent.md) [y](docs/a.md#absent) [z](/absolute.md)\n")
    with pytest.raises(SiteRefused) as refused:
        make_site(root, tmp_path / "site")
    for told in ("'docs/absent.md'", "anchor '#absent'", "'/absolute.md'", "docs/b.md", "Aborted with 4 warnings"):
        assert told in str(refused.value)

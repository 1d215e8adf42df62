"""``python -m tests.support.site``: makes the documentation's site, a folder for each release, by mkdocs.

Pages keep their places, so that links hold: README.md is the first page, and files elsewhere that a page names are
laid beside. What GitHub takes and Python's Markdown does not is written so that both do.

The changelog says which releases there are. Its first heading is what the tree holds; pages of the others are taken out
of their tags. The theme's switch reads `versions.json` beside the folders; `latest` leads to the newest release.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
MKDOCS = ROOT / ".venv-site/bin/mkdocs"
BUILD_SECONDS = 280
LATEST = "latest"
RECORDS = "docs/decisions"
_TO_LATEST = (
    '<!doctype html><meta charset="utf-8"><title>LoraPlane</title>'
    f'<meta http-equiv="refresh" content="0; url={LATEST}/">\n'
)
_HEADING = re.compile(r"^## \[([^\]]+)\]", re.MULTILINE)
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_LINK = re.compile(r"(\[[^\]\n]+\])\(([^)\s]+)\)")
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_ITEM = re.compile(r"^(?:[-*] |\d+\. )")


class SiteRefused(Exception):
    """No site can be made of what is here; the message says why, and what to do."""


def make_site(root: Path, into: Path) -> None:
    """Replaces `into` by the site of all releases that the changelog of a tree names.

    Raises:
        SiteRefused: a release has no tag here, a link is dead, or a page is not in the tree of mkdocs.yml.
    """
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "site"
        made.mkdir()
        names = versions((root / "CHANGELOG.md").read_text())
        for name in names:
            tree = root if name == names[0] else _tagged(root, name, Path(temporary) / "trees" / name)
            _build(tree, Path(temporary) / "work", made / name)
        (made / "versions.json").write_text(json.dumps(switch(names), indent=1) + "\n")
        (made / LATEST).symlink_to(newest(names), target_is_directory=True)
        (made / "index.html").write_text(_TO_LATEST)
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(made, into, symlinks=True)


def versions(changelog: str) -> list[str]:
    """What the headings of a changelog name, the newest first: releases, and `unreleased` before them."""
    return [heading.lower() for heading in _HEADING.findall(changelog)]


def newest(names: Sequence[str]) -> str:
    """The newest release of these; what is not released yet, where nothing is."""
    return next((name for name in names if _RELEASE.fullmatch(name)), names[0])


def switch(names: Sequence[str]) -> list[Mapping[str, str | list[str]]]:
    """What the theme's switch between versions reads."""
    return [{"version": name, "title": name, "aliases": [LATEST] if name == newest(names) else []} for name in names]


def _tagged(root: Path, name: str, into: Path) -> Path:
    """The tree of an earlier release, out of its tag."""
    command = ["git", "archive", f"v{name}"]
    done = subprocess.run(command, cwd=root, capture_output=True, check=False)
    if done.returncode:
        raise SiteRefused(
            f"CHANGELOG.md names {name}, and there is no tag v{name} to take its pages from: git fetch --tags"
        )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(into, filter="data")
    return into


def _build(tree: Path, work: Path, into: Path) -> None:
    """Writes the site of one tree into a folder."""
    lay_out(tree, work / "pages")
    (work / "mkdocs.yml").write_text(navigation((tree / "mkdocs.yml").read_text(), tree))
    command = [str(MKDOCS), "build", "--strict", "--config-file", str(work / "mkdocs.yml"), "--site-dir", str(into)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS)
    if done.returncode:
        raise SiteRefused(f"{into.name}: {(done.stdout + done.stderr).strip()}")


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
    return settings.replace(f"      - Decisions: {RECORDS}/\n", f"      - Decisions:\n{listed}")


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
    try:
        make_site(ROOT, SITE)
    except SiteRefused as refused:
        sys.exit(f"make site: {refused}")
    sys.stdout.write(f"{SITE.relative_to(ROOT)}: {', '.join(versions((ROOT / 'CHANGELOG.md').read_text()))}\n")


if __name__ == "__main__":
    main()

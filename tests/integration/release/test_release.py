"""A release that anybody can make: of one commit, whole, and the same bytes each time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.support.checkout import check_out, git
from tests.support.release.__main__ import ROOT, SUMS, TOOLS, make_release
from tests.support.release.images import make_images
from tests.support.release.source_tree import ReleaseRefused, Source, notes, take_source, versions

VERSION = versions(ROOT)["pyproject.toml"]
needs_tools = pytest.mark.skipif(not TOOLS.exists(), reason="bills of materials: make .venv-tools/.installed")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """This tree as it is now, committed in a repository of its own."""
    return check_out(tmp_path_factory.mktemp("checkout"))


@needs_tools
def test_two_builds_are_equal_and_whole(checkout, tmp_path, monkeypatch):
    """Elsewhere, later, under another mask, and in another time zone."""
    make_release(VERSION, tmp_path / "one", root=checkout, with_images=False)
    elsewhere = tmp_path / "elsewhere"
    git(tmp_path, "clone", "--quiet", str(checkout), str(elsewhere))
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    before = os.umask(0o077)
    try:
        make_release(VERSION, tmp_path / "two", root=elsewhere, with_images=False)
    finally:
        os.umask(before)
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert [name for name in one if one[name] != two.get(name)] == []
    assert (
        set(one)
        == set(two)
        == {
            SUMS,
            f"NOTES-{VERSION}.md",
            f"loraplane-{VERSION}-py3-none-any.whl",
            f"loraplane-{VERSION}.cdx.json",
            f"loraplane-{VERSION}.tar.gz",
            f"loraplane-{VERSION}.tgz",
            f"loraplane-vllm-{VERSION}.cdx.json",
            f"loraplane_vllm-{VERSION}-py3-none-any.whl",
            f"loraplane_vllm-{VERSION}.tar.gz",
        }
    )
    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=tmp_path / "one", check=True, capture_output=True)
    assert one[f"NOTES-{VERSION}.md"].decode() == notes(checkout, VERSION)
    with zipfile.ZipFile(tmp_path / "one" / f"loraplane-{VERSION}-py3-none-any.whl") as wheel:
        assert {"registry/admin/page/static/app.js", "registry/admin/page/static/page.css"} <= {*wheel.namelist()}
    bill = json.loads(one[f"loraplane-{VERSION}.cdx.json"])
    assert (bill["metadata"]["component"]["name"], bill["metadata"]["component"]["version"]) == ("loraplane", VERSION)
    assert {"grpcio", "pydantic"} <= {part["name"] for part in bill["components"]}
    is_installed(tmp_path / "one", tmp_path / "site")
    is_packed(tmp_path / "one" / f"loraplane-{VERSION}.tgz", tmp_path)


def is_installed(made: Path, site: Path) -> None:
    """Wheels say their version, and source archives are of nobody."""
    wheel, archive = made / f"loraplane-{VERSION}-py3-none-any.whl", made / f"loraplane-{VERSION}.tar.gz"
    plugin = made / f"loraplane_vllm-{VERSION}-py3-none-any.whl"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel), str(plugin)], check=True, capture_output=True)
    for module in ("registry.cli.main", "registry.admin.main", "sidecar.main", "registry.tools.verify.main"):
        program = f"import sys; sys.path.insert(0, {str(site)!r}); from {module} import main; main()"
        command = [sys.executable, "-I", "-c", program, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=site)
        assert done.stdout.split()[-1] == VERSION
    assert (site / "loraplane_vllm/entry.py").exists()
    with tarfile.open(archive) as opened:
        names = opened.getnames()
        assert {one.uid for one in opened} == {0}
    assert f"loraplane-{VERSION}/docs/loraplane.1" in names
    assert f"loraplane-{VERSION}/LICENSE" in names


def is_packed(chart: Path, folder: Path) -> None:
    """What helm would call a chart of this release."""
    with tarfile.open(chart) as opened:
        opened.extractall(folder / "chart", filter="data")
        assert opened.getnames()[0] == "loraplane/Chart.yaml"
    told = yaml.safe_load((folder / "chart/loraplane/Chart.yaml").read_text())
    assert (told["name"], told["version"], told["appVersion"]) == ("loraplane", VERSION, VERSION)
    assert (folder / "chart/loraplane/values.schema.json").exists()


def test_all_of_the_tree_says_one_version():
    assert set(versions(ROOT).values()) == {VERSION}
    assert len(versions(ROOT)) >= 9


IMAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in ("compose", "deploy")
    for path in (ROOT / folder).rglob("*.yaml")
    if "image: loraplane/" in path.read_text()
)


@pytest.mark.parametrize("file", IMAGES)
def test_each_tag_of_each_file_is_looked_at(tmp_path, file):
    """The first of several images of one name, too."""
    for name in ("pyproject.toml", "sidecar/vllm_plugin/pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for folder in ("compose", "deploy"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    text = (tmp_path / file).read_text()
    ((image, _),) = Counter(re.findall(r"image: (loraplane/\w+):", text)).most_common(1)
    (tmp_path / file).write_text(text.replace(f"image: {image}:", f"image: {image}:0.0.1-", 1))
    told = {where: found for where, found in versions(tmp_path).items() if found != VERSION}
    assert told.keys() == {f"{image} in {file}"}
    assert f"0.0.1-{VERSION}" in told[f"{image} in {file}"]


def test_what_is_not_committed_is_in_no_release(checkout, tmp_path):
    (checkout / "forgotten.py").touch()
    try:
        with pytest.raises(
            ReleaseRefused, match=r"the tree is dirty: commit or remove forgotten\.py, then run it again"
        ):
            take_source(checkout, VERSION, tmp_path)
    finally:
        (checkout / "forgotten.py").unlink()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "told"),
    [("0.2", "it is x.y.z"), ("v0.2.0", "it is x.y.z"), ("99.0.0", f"pyproject.toml says {VERSION}, .*CHANGELOG.md's")],
)
def test_a_version_that_the_tree_does_not_say_is_refused(checkout, tmp_path, version, told):
    with pytest.raises(ReleaseRefused, match=told):
        take_source(checkout, version, tmp_path)


def test_a_release_without_a_word_about_it_is_refused(tmp_path):
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - 2026-01-01\n\n## [1.2.2] - 2025-01-01\n- old\n")
    with pytest.raises(ReleaseRefused, match=r"says nothing of 1\.2\.3: name its section"):
        notes(tmp_path, "1.2.3")
    assert notes(tmp_path, "1.2.2") == "# LoraPlane 1.2.2\n\n- old\n"


def test_images_that_cannot_be_made_are_one_line_with_the_remedy(tmp_path, monkeypatch):
    """As where the base is in a registry that is out of reach; another one may be named."""
    podman, told = tmp_path / "podman", tmp_path / "told"
    podman.write_text(
        f'#!/bin/sh\necho "$@" >> {told}\necho "STEP 1/2" >&2\necho "Error: no such host" >&2\nexit 125\n'
    )
    podman.chmod(0o755)
    (tmp_path / f"loraplane-{VERSION}.cdx.json").touch()
    monkeypatch.setenv("LORAPLANE_PYTHON_IMAGE", "mirror.example/python:1")
    with pytest.raises(ReleaseRefused, match=r"podman build of admin: Error: no such host; .*IMAGES=no") as refused:
        make_images(Source(tmp_path, VERSION, "0" * 40, 0), tmp_path, [str(podman)])
    assert "\n" not in str(refused.value)
    assert "--build-arg PYTHON_IMAGE=mirror.example/python:1" in told.read_text()

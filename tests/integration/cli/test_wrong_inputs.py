"""Wrong command lines: each is told in one line, with what is wrong and what to do, and changes nothing."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.support.wrong_inputs import PAGE, page, table

FILES, INPUTS = table()


@pytest.fixture(scope="module")
def prepared(shared_cli):
    """The command line of a pool that holds the adapter `sql`, with the files of the table."""
    for name, text in FILES.items():
        (shared_cli.folder / name).write_text(text)
    (shared_cli.folder / "folder").mkdir()
    assert shared_cli("add", "sql", "--source", "s3://b/sql", "--look-seconds", "0").code == 0
    return shared_cli


@pytest.fixture
def wrong(prepared, monkeypatch):
    """The same in its own working directory, with no contexts and no sources of other hosts."""
    monkeypatch.chdir(prepared.folder)
    monkeypatch.setenv("LORAPLANE_CONFIG", str(prepared.folder / "contexts.json"))
    monkeypatch.setenv("LORAPLANE_LOOK_SECONDS", "0")
    monkeypatch.delenv("EDITOR", raising=False)
    return prepared


@pytest.mark.parametrize("given", INPUTS, ids=[one.line for one in INPUTS])
def test_a_wrong_input_is_told_with_its_remedy(wrong, given):
    ran = wrong(*shlex.split(given.line))
    said = re.sub(r"current is [0-9]+", "current is {etag}", ran.err.replace(str(wrong.folder), "{folder}"))
    assert (ran.code, said) == (given.exit, f"error: {given.message}\n")


def test_nothing_was_changed_by_any_of_them(wrong):
    before = [wrong.json("get", kind) for kind in ("adapters", "pools", "tenants")]
    for one in INPUTS:
        wrong(*shlex.split(one.line))
    assert [wrong.json("get", kind) for kind in ("adapters", "pools", "tenants")] == before
    assert {one["metadata"]["name"] if "metadata" in one else one["name"] for one in before[0]["items"]} == {"sql"}


@pytest.mark.parametrize("given", INPUTS, ids=[one.line for one in INPUTS])
def test_each_message_names_what_is_wrong_and_what_to_do(given):
    assert given.field in given.message
    assert given.remedy in given.message
    assert given.exit in {2, 3, 4, 5}


def test_there_are_sixty_at_least():
    assert len({one.line for one in INPUTS}) == len(INPUTS) >= 60


def test_the_page_is_current():
    """Fails when the table changed: make docs."""
    assert PAGE.read_text() == page()

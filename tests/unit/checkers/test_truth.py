"""What statuses call served, held against what their sidecars saw."""

from __future__ import annotations

import pytest

from registry.model.records import AdapterSpec, Canary, Placement, SourceSpec, Strategy
from registry.model.status import Failed, Found, Leaving, Pending, Served
from registry.transactions.changes import Upsert
from tests.support.changes import KEYS, POOL, spec
from tests.support.checkers.truth import Claim, hash_of
from tests.unit.checkers.story import Story, engine, path_of, served


def pinned(name: str, digit: str, **fields: object) -> Upsert:
    source = SourceSpec(uri=f"file:///{digit}", digest="sha256:" + digit * 64)
    return Upsert(name, AdapterSpec(source=source, **fields))  # type: ignore[arg-type]


def of_two() -> tuple[Story, int]:
    """a and b are desired, at the revision that is given too; nothing was seen yet."""
    story = Story()
    at = story.write(pinned("a", "1"), pinned("b", "2"))
    story.start()
    return story, at


def test_the_hash_of_claims_is_that_of_statuses():
    claims = [Claim("b", 2, "sha256:" + "2" * 64), Claim("a", 1, "sha256:" + "1" * 64)]
    assert Served(count=2, hash=hash_of(claims)) == served(("a", 1, "1"), ("b", 2, "2"))


def test_a_status_that_says_what_was_seen_is_true():
    """R9 status-truth: served, not yet served, deleted, and after the engine has restarted."""
    story, at = of_two()
    story.look(whole=True, theirs="9")
    waiting = [Pending(name=name, generation=1, reason="staging") for name in ("a", "b")]
    story.say(at, served=served(), pending=waiting)
    story.look(a="1")
    story.say(at, served=served(("a", 1, "1")), pending=waiting[1:])
    story.look(b="2")
    story.say(at, served=served(("a", 1, "1"), ("b", 1, "2")))
    later = story.write(pinned("a", "3"))
    story.look(a="3")
    story.say(later, served=served(("a", 2, "3"), ("b", 1, "2")))
    story.look("e2", whole=True)
    story.look("e2", a="3", b="2")
    story.say(later, served=served(("a", 2, "3"), ("b", 1, "2")), engine=engine("e2"))
    findings, counts = story.check()
    assert (findings, counts["statuses"]) == ([], 5)


@pytest.mark.parametrize("again", ["e1", "e2"], ids=["it froze", "it restarted"])
def test_what_an_engine_served_when_it_was_last_seen_is_told_with_its_time(again):
    """R9: an engine that dies while it serves is no lie of its sidecar's, also of records that changed since."""
    story, at = of_two()
    everything = served(("a", 1, "1"), ("b", 1, "2"))
    then, nothing = everything.model_copy(update={"seen_at": "2026-01-01T00:00:00.000Z"}), engine("")
    story.look(whole=True, a="1", b="2")
    story.say(at, served=everything)
    story.say(at, served=then, engine=nothing)
    later = story.write(pinned("a", "3"))
    story.say(later, served=then, engine=nothing)
    story.look(again, whole=True, a="3", b="2")
    story.say(later, served=served(("a", 2, "3"), ("b", 1, "2")), engine=engine(again))
    assert (story.found(), story.check()[1]["statuses"]) == ([], 4)


@pytest.mark.parametrize("shown", [None, {}, {"a": "1"}, {"a": "1", "b": "9"}])
def test_what_an_engine_never_served_is_not_told_of_it_later(shown):
    """R9: neither of one that is out of reach, nor where somebody else has loaded the name (R11)."""
    story, at = of_two()
    story.log("artifact_staged", name="x", artifact="9" * 64, digest="sha256:" + "9" * 64)
    if shown is not None:
        story.look(whole=True, **shown)
    then = served(("a", 1, "1"), ("b", 1, "2")).model_copy(update={"seen_at": "2026-01-01T00:00:00.000Z"})
    story.say(at, served=then, engine=engine(""))
    assert [one.guarantee for one in story.found()] == ["R9"]
    story, at = of_two()
    story.log("engine_listed", incarnation="e1", whole=True, adapters={"a": "/tmp/a"}, more=True)  # noqa: S108 - a name
    story.look(b="2")
    story.say(at, served=served(("a", 1, "1"), ("b", 1, "2")))
    assert [one.guarantee for one in story.found()] == ["R9"]


MADE = "sha256:777777777777…"


@pytest.mark.parametrize(
    ("adapters", "words"),
    [
        ({"a": "1"}, "'b' is called served at generation 1, and was not listed"),
        ({}, "'a' is called served at generation 1, and was not listed, and 1 more"),
        (
            {"a": "1", "b": "7"},
            f"'b' is called served at generation 1, and was listed from {path_of('7')}, which was made of {MADE}",
        ),
    ],
)
def test_a_status_that_says_what_no_look_showed_is_found(adapters, words):
    """R9: absent, or under another artifact."""
    story, at = of_two()
    story.log("artifact_staged", name="x", artifact="7" * 64, digest="sha256:" + "7" * 64)
    story.look(whole=True, **adapters)
    revision = story.say(at, served=served(("a", 1, "1"), ("b", 1, "2")))
    (finding,) = story.found()
    assert str(finding) == f"R9 at revision {revision}, r1.log, r1: its status is not what it saw: {words}"


def test_what_another_process_of_the_engine_had_is_not_served():
    """R9: in the same incarnation."""
    story, at = of_two()
    everything = served(("a", 1, "1"), ("b", 1, "2"))
    story.look(whole=True, a="1", b="2")
    story.say(at, served=everything, engine=engine("e2"))
    assert "it says that 2 are served, and no look had shown incarnation 'e2'" in str(story.found()[0])
    story.look("e2", whole=True)
    story.say(at, served=everything, engine=engine("e2"))
    assert [one.guarantee for one in story.found()] == ["R9", "R9"]


def test_what_was_seen_long_before_the_last_status_is_not_served():
    """R9: memory is no observation. What the status before it said may be said while a round lasts, and two looks."""
    story, at = of_two()
    everything = served(("a", 1, "1"), ("b", 1, "2"))
    story.look(whole=True, a="1", b="2")
    story.look(b=None)
    story.look(a=None)
    story.say(at, served=everything)
    story.say(at, served=everything)
    assert story.found() == []
    story.look(theirs="9")
    story.say(at, served=everything)
    story.say(at, served=everything)
    assert [one.guarantee for one in story.found()] == ["R9"]


def test_who_serves_a_part_says_which_by_its_hash():
    """R9: what is placed, tried by canaries, found, failed, leaving or lazy is told apart by what has the hash."""
    story = Story()
    canary = Strategy(canary=Canary(replicas=1))
    story.write(
        pinned("a", "1"), pinned("some", "2", placement=Placement(replicas=1)), pinned("lazy", "3", load="lazy")
    )
    story.write(Upsert("unpinned", spec("v1")), pinned("gone", "5", placement=Placement(selector={"zone": "a"})))
    at = story.write(pinned("a", "4", strategy=canary))
    story.start()
    story.look(whole=True, a="1", unpinned="6", some="2", gone="5")
    about = {
        "found": [Found(name="unpinned", generation=1, digest="sha256:" + "6" * 64)],
        "leaving": [Leaving(name="gone", generation=1)],
    }
    rest = ("unpinned", 1, "6")
    story.say(at, served=served(("a", 1, "1"), rest), **about)
    story.say(at, served=served(("a", 1, "1"), rest, ("some", 1, "2")), **about)
    refused = Failed(name="a", generation=1, reason="x", message="", attempts=1, retry_at=None)
    story.say(at, served=served(rest, ("some", 1, "2")), failed=[refused], **about)
    assert (story.found(), story.check()[1]["statuses"]) == ([], 3)
    lines = [*story.lines]
    story.look(some=None)
    for _ in range(4):
        story.look(theirs="9")
    story.say(at, served=served(("a", 1, "1"), rest, ("some", 1, "2")), **about)
    story.say(at, served=served(("a", 1, "1"), rest, ("some", 1, "2")), **about)
    assert {(one.guarantee, "'some' is called served" in str(one)) for one in story.found()} == {("R9", True)}
    story.lines = lines
    story.say(at, served=served(("a", 2, "4"), rest, ("some", 1, "2")), **about)
    story.log("artifact_staged", name="a", artifact="1" * 64, digest="sha256:" + "1" * 64)
    assert [one.guarantee for one in story.found()] == ["R9"]


def test_versions_that_are_listed_under_names_of_their_own_are_told_apart():
    """R9, and no finding of R3, R6 or R11."""
    story = Story()
    story.write(pinned("a", "1"))
    at = story.write(pinned("a", "2"))
    story.start()
    story.look(whole=True, **{"a@1": "1"})
    story.log("engine_call", call="unload", name="a@1", outcome="Done()")
    story.say(at, served=served(("a", 2, "2")), engine=engine(names="versioned"))
    assert [one.guarantee for one in story.found()] == ["R9"]
    story.look(**{"a@2": "2"})
    story.say(at, served=served(("a", 2, "2")), engine=engine(names="versioned"))
    assert [one.guarantee for one in story.found()] == ["R9"]


@pytest.mark.parametrize(
    "fields",
    [{}, {"stale": True}, {"observed_revision": 99}, {"observed_revision": 0}, {"served": served(("c", 1, "1"))}],
    ids=["a lie", "stale", "of a later revision", "of an earlier one", "of what nobody can tell"],
)
def test_what_cannot_be_told_is_not_judged(fields):
    story, at = of_two()
    story.look(whole=True)
    story.say(at, **{"served": served(("a", 1, "1"), ("b", 1, "2"))} | fields)
    story.author.etcd.history[0:1] = []
    assert (len(story.found()), story.check()[1]["statuses"]) == ((0, 0) if fields else (1, 1))


@pytest.mark.parametrize("fault", ["no start", "unreadable", "absent", "another's", "of another store"])
def test_a_status_whose_looks_are_not_known_is_not_judged(fault):
    """R9: of the log, or of the history, a part is missing or is another's."""
    story, at = of_two()
    revision = story.say(at, served=served(("a", 1, "1"), ("b", 1, "2")))
    assert len(story.found()) == 1
    match fault:
        case "no start":
            del story.lines[0]
        case "unreadable":
            story.lines[-1]["revision"] = story.author.etcd.put(KEYS.status(POOL, "r1"), b"?")
        case "absent":
            story.lines[-1]["revision"] = revision + 9
        case "another's":
            story.lines[0]["replica"] = "r2"
        case "of another store":
            story.lines[-1]["updated_at"] = "2026-01-01T00:00:01.000Z"
    story.lines.append({"level": "info"})
    assert story.check() == ([], {})

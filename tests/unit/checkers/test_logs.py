"""What a sidecar's log says that it saw, wrote and removed."""

from __future__ import annotations

import pytest

from tests.support.checkers.logs import Looks, SidecarProcess, TakenState, Write, documents, processes, seconds_of
from tests.unit.checkers.story import Story, path_of


def looked(*looks: dict[str, str | None]) -> Looks:
    """Looks one after another, a second each, by what each showed otherwise; an empty one: of another process."""
    seen = Looks()
    for number, look in enumerate(looks):
        if not look:
            seen.forget()
        seen.change(look)
        seen.close(float(number), f"e{number}")
    return seen


def test_what_each_look_showed_under_each_name():
    """R7, R9: it lasts until a look shows otherwise."""
    seen = looked({"a": "/1"}, {"b": "/2"}, {"a": None, "b": "/3"}, {"a": "/4"})
    assert [seen.path("a", number) for number in range(-1, 5)] == [None, "/1", "/1", None, "/4", "/4"]
    assert [seen.path("b", number) for number in range(4)] == [None, "/2", "/3", "/3"]
    assert [seen.path("c", number) for number in range(4)] == [None] * 4
    assert [seen.names(number) for number in range(4)] == [{"a"}, {"a", "b"}, {"b"}, {"a", "b"}]
    assert (seen.count, seen.times, seen.incarnations) == (4, [0.0, 1.0, 2.0, 3.0], ["e0", "e1", "e2", "e3"])


def test_another_process_of_the_engine_has_nothing():
    """R9: also of what came and went before it."""
    seen = looked({"a": "/1", "b": "/2"}, {"b": None}, {}, {"b": "/3"}, {})
    assert [seen.names(number) for number in range(5)] == [{"a", "b"}, {"a"}, set(), {"b"}, set()]
    assert [seen.path("b", number) for number in range(5)] == ["/2", None, None, "/3", None]


def test_an_artifact_is_listed_in_spans_of_looks():
    """R7 files-pinned: under each name by itself; what is no artifact of ours has none."""
    one, two = path_of("1"), path_of("2")
    seen = looked({"a": one, "x": "/x"}, {"b": one}, {"a": two}, {"b": None}, {"b": one})
    assert seen.spans() == {"1" * 64: [range(2), range(1, 3), range(4, 5)], "2" * 64: [range(2, 5)]}
    seen.change({"c": two})  # of a look that was not told whole
    assert seen.spans()["2" * 64] == [range(2, 5), range(5, 5)]


def process_of(story: Story) -> SidecarProcess:
    return processes("r1.log", story.lines)[-1]


def test_a_process_is_what_its_lines_say():
    """R7, R9: looks, statuses, removals and what artifacts were made of."""
    story = Story()
    story.start()
    story.look(whole=True, a="1")
    story.now += 5.0
    story.log("artifact_staged", artifact="1" * 64, digest="sha256:1")
    story.log("artifact_staged", name="of an earlier release")
    story.log("artifact_removed", artifact="2" * 64)
    story.lines.append({"level": "info"})
    process = process_of(story)
    assert (process.where, process.replica, process.store, process.grace_seconds) == ("r1.log", "r1", "s", 600.0)
    assert (process.is_steady, process.newest) == (True, story.now)
    assert process.made_of == {"1" * 64: "sha256:1"}
    assert process.removals == [TakenState(story.now, "2" * 64)]
    assert (process.looks.times, process.looks.incarnations) == ([story.now - 5.0], ["e1"])


def test_a_status_is_of_the_looks_since_the_one_before_and_three_more():
    """R9 status-truth: derived from the last report, or one of the two looks that follow it."""
    story = Story()
    story.start()
    for looks in (1, 0, 5, 0, 1):
        for _ in range(looks):
            story.look(whole=not any(line["event"] == "engine_listed" for line in story.lines))
        story.log("status_written", revision=7, updated_at="then")
    spans = [range(1), range(1), range(6), range(3, 6), range(3, 7)]
    assert process_of(story).writes == [Write(7, "then", span) for span in spans]


def test_what_was_listed_is_known_from_the_first_whole_look_on():
    """R9: a log may begin in the middle."""
    story = Story()
    story.start()
    story.look(a="1")
    assert process_of(story).looks.count == 0
    story.look(whole=True, b="2")
    story.look(c="3")
    looks = process_of(story).looks
    assert [looks.names(number) for number in range(looks.count)] == [{"b"}, {"b", "c"}]


def test_a_look_may_be_told_in_parts():
    """R16 bounded: it is one look all the same, with the time and the engine of its last part."""
    story = Story()
    story.start()
    story.look(whole=True, z="9")
    story.look(whole=True, a="1")
    story.lines[-1]["more"] = True
    story.now += 1.0
    story.look("e2", b="2")
    looks = process_of(story).looks
    assert (looks.count, looks.names(1), looks.times[1], looks.incarnations[1]) == (2, {"a", "b"}, story.now, "e2")


def test_each_start_is_another_process():
    """R7: each with its own looks; what comes before the first start is nobody's."""
    story = Story()
    story.look(whole=True, a="1")
    story.start()
    story.look(whole=True, b="2")
    story.start(replica="r2", store="t", grace_seconds=7.0)
    found = processes("x.log", story.lines)
    assert [(one.replica, one.store, one.grace_seconds, one.where) for one in found] == [
        ("", "", 0.0, "x.log"),
        ("r1", "s", 600.0, "x.log"),
        ("r2", "t", 7.0, "x.log"),
    ]
    assert [one.looks.count for one in found] == [1, 1, 0]
    story.lines[-1] = {"event": "started"}  # of an earlier release, which did not say of what
    assert len(processes("x.log", story.lines)) == 2


@pytest.mark.parametrize(("back_seconds", "is_steady"), [(-1.0, True), (0.0, True), (1.0, True), (1.1, False)])
def test_a_clock_is_steady_that_is_not_set_back(back_seconds, is_steady):
    """R7: lines of threads may be written a second later than they are dated; also across a restart."""
    story = Story()
    story.start()
    story.now -= back_seconds
    story.log("any")
    assert process_of(story).is_steady is is_steady
    story.start()
    assert process_of(story).is_steady is is_steady
    assert process_of(story).newest == story.now + max(0.0, back_seconds)


def test_a_line_without_a_time_is_of_no_steady_clock():
    """R7: what it tells is dated to the beginning of time, so that nothing is judged by it."""
    story = Story()
    story.start()
    story.log("artifact_removed", artifact="1" * 64)
    del story.lines[-1]["timestamp"]
    process = process_of(story)
    assert (process.is_steady, process.newest, process.removals[0].at) == (False, story.now, 0.0)


@pytest.mark.parametrize(
    ("timestamp", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T01:00:00.500+01:00", 0.5),
        ("soon", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_the_time_of_a_line(timestamp, seconds):
    assert seconds_of(timestamp) == seconds


@pytest.mark.parametrize("line", ["5", "[1]", '"plan_made"', "null", "true", "Traceback", '{"event": '])
def test_a_line_that_is_no_object_is_passed_over(line):
    assert documents(['{"event": "a"}', line, '{"event": "b"}']) == [{"event": "a"}, {"event": "b"}]

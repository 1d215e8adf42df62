"""What an engine with one place was told, as it is remembered."""

from __future__ import annotations

import json

import pytest

from sidecar.engines.others.single_slot import (
    EPOCH_SECONDS,
    UNTOUCHED,
    Active,
    Clearing,
    Nothing,
    SingleSlot,
    read_slot,
)

NOW = EPOCH_SECONDS + 1000.9


def test_another_process_was_told_nothing():
    """R9: and numbers go on, for whoever reads the record next."""
    slot = SingleSlot("p1").with_content(Active(7, "x", "/a"))
    assert slot.of("p1") is slot
    assert slot.of("p2") == SingleSlot("p2", 7, Nothing())


def test_numbers_rise_with_the_clock_and_without_it():
    """R4 digest-true: also where the record is lost, the clock goes back, or nothing is told in between."""
    slot = UNTOUCHED
    numbers = []
    for now in (NOW, NOW, NOW - 500, NOW + 100):
        active = slot.next_active("x", "/a", now)
        numbers.append(active.number)
        slot = slot.with_content(active).with_content(Clearing("x")).with_content(Nothing())
    assert numbers == [1000, 1001, 1002, 1100]
    assert UNTOUCHED.next_active("x", "/a", 0.0) == Active(1, "x", "/a")
    assert Active(1, "x", "/a").label == "x#1", "which no other weights under that name have"
    # Of any release, and for decades within the 31 bits that some of vLLM's have.
    assert UNTOUCHED.next_active("x", "/a", 1_800_000_000.9).number == 222_163_200
    assert UNTOUCHED.next_active("x", "/a", 3_700_000_000.0).number < 2**31


@pytest.mark.parametrize("content", [Nothing(), Clearing("acme/x"), Active(7, "acme/x", "/a")], ids=str)
def test_it_is_read_as_it_was_written(content):
    slot = SingleSlot("p1", 9, content)
    assert read_slot(slot.to_bytes()) == slot


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b"[" * 100_000, b'{"schema": 2, "incarnation": "p"}'], ids=len)
def test_what_is_damaged_says_nothing(value):
    """R12 crash-only."""
    assert read_slot(value) == UNTOUCHED


def test_a_number_that_no_engine_takes_says_nothing():
    """R12, X2."""
    kept = {"kind": "active", "number": 7, "name": "x", "path": "/a"}
    value = {"schema": 1, "incarnation": "p", "last_number": 9, "content": kept}
    assert read_slot(json.dumps(value).encode()) == SingleSlot("p", 9, Active(7, "x", "/a"))
    for number in (0, (1 << 31) - 1):
        whole = value | {"last_number": number, "content": kept | {"number": number}}
        assert read_slot(json.dumps(whole).encode()) == SingleSlot("p", number, Active(number, "x", "/a"))
    for number in (-1, 1 << 31, "7"):
        assert read_slot(json.dumps(value | {"last_number": number}).encode()) == UNTOUCHED
        odd = json.dumps(value | {"content": kept | {"number": number}}).encode()
        assert read_slot(odd) == SingleSlot("p", 9, Nothing())

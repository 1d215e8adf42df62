"""A test whose fault never struck fails at its end."""

from __future__ import annotations

from sidecar.engines.simulated.options import Die, Faults
from tests.support.ordered import left, ordered


def test_what_never_struck_is_told_once():
    struck = list[str]()
    ordered("one", lambda: "one" in struck)
    ordered("two", lambda: "two" in struck)
    struck.append("two")
    assert left() == ["one"]
    assert left() == []


def test_a_simulated_engine_tells_which_faults_are_still_to_strike():
    faults = Faults()
    faults.order("load", Die(), spare=1)
    faults.order("unload", Die())
    assert (faults.take("load"), faults.left) == (None, {"load", "unload"})
    assert [faults.take("load"), faults.take("unload")] == [Die(), Die()]
    assert faults.left == set()

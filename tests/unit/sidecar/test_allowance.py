"""What is only told gets a share of the time."""

from __future__ import annotations

from sidecar.allowance import Allowance


def test_what_takes_long_is_done_until_the_allowance_is_spent():
    """R16 bounded: what was begun in time may end late, and is owed."""
    allowance = Allowance(0.5, 0.1)
    assert allowance.is_left(100.0)
    allowance.spend(0.3)
    assert allowance.is_left(100.3)
    allowance.spend(0.3)
    assert not allowance.is_left(100.6)


def test_it_comes_again_with_time_but_is_not_saved_up():
    allowance = Allowance(0.5, 0.1)
    allowance.spend(0.6)
    assert not allowance.is_left(0.9)
    assert allowance.is_left(1.1)
    assert allowance.is_left(1000.0)
    allowance.spend(0.5)
    assert not allowance.is_left(1000.0)


def test_a_clock_that_stands_still_or_goes_back_gives_nothing():
    allowance = Allowance(0.5, 0.1)
    assert allowance.is_left(100.0)
    allowance.spend(0.5)
    assert not allowance.is_left(100.0)
    assert not allowance.is_left(50.0)

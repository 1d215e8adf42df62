"""Keys of rank_pattern mean here what they mean to PEFT, or are refused."""

from __future__ import annotations

import re

from hypothesis import assume, given
from hypothesis import strategies as st

from registry.lora.modules import Patterns

ATOMS = st.sampled_from(["a", "b", ".", r"\.", "0", r"\d", r"\w", r"\D", "[ab]", "[^a]", "[a-c.]", "_", "-"])
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "*?", "{2}", "{1,2}", "{1,}", "{,2}", "*+", "**"])
NAMES = st.text("ab0._-", max_size=8)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    grouped = st.builds(
        lambda one, opening, repeat: f"{opening}{one}){repeat}", inner, st.sampled_from("(|(?:|(?=".split("|")), REPEATS
    )
    either = st.builds("{}|{}".format, inner, inner)
    return st.one_of(grouped, either, st.builds("{}{}".format, inner, inner))


KEYS = st.recursive(st.builds("{}{}".format, ATOMS, REPEATS), _larger, max_leaves=6)


@given(st.builds("{}{}{}".format, st.sampled_from(["", "^"]), KEYS, st.sampled_from(["", "$"])), NAMES)
def test_a_key_that_is_followed_matches_what_peft_matches(key, name):
    """R5: a rank or an alpha that is read otherwise than PEFT reads it would make another adapter."""
    followed = Patterns({key: 1}, 3)
    assume(followed._rules)
    assert (followed.own(name) == 1) == bool(re.match(rf"(.*\.)?({key})$", name))

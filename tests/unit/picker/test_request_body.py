"""The field `model` of a body: found as JSON readers find it, exchanged without touching anything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.picker.request_body import UnreadableBody, model_of


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "no JSON object"),
        (b"[]", "no JSON object"),
        (b'"model"', "no JSON object"),
        (b"{", "no JSON object"),
        (b'{"model"', "no JSON object"),
        (b'{"model" "a"}', "no JSON object"),
        (b'{"model";"a"}', "no JSON object"),
        (b'{"model": }', "no JSON object"),
        (b'{"model": "a"', "no JSON object"),
        (b'{"model": "a",}', "no JSON object"),
        (b'{"model": "a" "b"}', "no JSON object"),
        (b'{"model": "a"} x', "no JSON object"),
        (b'{"model": "a"}x', "no JSON object"),
        (b"{1: 2}", "no JSON object"),
        (b'{"a": ' + b"[" * 100_000, "no JSON object"),
        (b'{"model": "\xff"}', "UTF-8"),
        (b"{}", "stands not"),
        (b'{"a": {"model": "x"}}', "stands not"),
        (b'{"model": "a", "model": "b"}', "twice"),
        (b'{"mod\\u0065l": "a", "model": "b"}', "twice"),
        (b'{"model": 3}', "no text"),
        (b'{"model": null}', "no text"),
        (b'{"model": ""}', "no text"),
        (b'{"model": "a"' + b', "": 0' * 10_000 + b"}", "more than 10000 names"),
    ],
)
def test_a_body_that_names_no_model_is_refused_with_the_reason(body, problem):
    with pytest.raises(UnreadableBody, match=problem) as caught:
        model_of(body)
    assert 'send a JSON object with "model": "NAME"' in str(caught.value)


def test_all_else_stays_byte_for_byte():
    body = ' { "a": 1.00, "model" : "s\\u0071l" , "seed": 12345678901234567890, "b": "ü", "a": 1e0 }\n'.encode()
    found = model_of(body)
    assert (found.name, found.renamed("sql@3")) == ("sql", body.replace(b'"s\\u0071l"', b'"sql@3"'))
    assert model_of(b'{"a":[1],"model":"sql","b":{}}').renamed("sql@3") == b'{"a":[1],"model":"sql@3","b":{}}'


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.no_cover  # what it executes, quicker tests do too
@given(
    before=st.dictionaries(st.text(max_size=6), values, max_size=3),
    after=st.dictionaries(st.text(max_size=6), values, max_size=3),
    name=st.text(min_size=1, max_size=8).filter(lambda text: text.isprintable()),
    new=st.text(min_size=1, max_size=8).filter(lambda text: text.isprintable()),
    indent=st.sampled_from([None, 0, 2]),
)
def test_the_body_with_another_model_is_that_of_who_would_have_asked_for_it(before, after, name, new, indent):
    rest = {key: value for key, value in {**before, **after}.items() if key != "model"}
    whole = {**{key: rest[key] for key in before if key in rest}, "model": name, **rest}
    found = model_of(json.dumps(whole, indent=indent, ensure_ascii=False).encode())
    assert (found.name, json.loads(found.renamed(new))) == (name, {**whole, "model": new})

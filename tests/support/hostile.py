"""Values that somebody may write under any key, and mutations of good ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from hypothesis import strategies as st

LARGE = 10**400
DEEP = "[" * 30_000
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.just(LARGE), st.floats(), st.text(max_size=5), st.just("\ud800")
)
ANY_JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)

# What has ended or misled some reader of JSON.
SCALARS: tuple[object, ...] = (
    *(None, True, "", "x", "\ud800", "\x1b[31m\u202e\n", "x" * 5000),
    *(-1, 0, 1 << 31, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, 10**30, LARGE, 0.5, float("inf"), float("nan")),
    *([], [[]], {}, {"a": {}}, [None], ["\x00"], [{}] * 3),
)
RAW: tuple[bytes, ...] = (
    *(b"", b"?", b"\xff\xfe", b"{", b"null", b"0", b'""', b"[]", b"{}", b'{"schema":1}', b'{"schema":2}'),
    *(
        b'{"schema":%d}' % LARGE,
        b'{"schema":"1"}',
        b'{"schema":1e400}',
        DEEP.encode(),
        b'{"a":' * 900 + b"1" + b"}" * 900,
    ),
    b'{"a":' * 300 + b"1" + b"}" * 300,
)


def dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def mutations(value: Any) -> st.SearchStrategy[Any]:
    """The value with something else in one place."""
    return st.tuples(st.sampled_from(_places(value)), ANY_JSON).map(lambda drawn: drawn[0](drawn[1]))


def spoiled(good: bytes, each: int = 3) -> Iterator[bytes]:
    """Bytes that are no such value, and the value with each of its places spoiled in turn, in so many ways."""
    yield from RAW
    for number, place in enumerate(_places(json.loads(good))):
        for one in range(each):
            yield dumped(place(SCALARS[(number * 5 + one * 7) % len(SCALARS)]))


def _places(value: Any) -> list[Callable[[Any], Any]]:
    found: list[Callable[[Any], Any]] = [lambda other: other]
    entries: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        entries = list(value.items() if isinstance(value, dict) else enumerate(value))
    return found + [partial(_replaced, value, key, at) for key, inner in entries for at in _places(inner)]


def _replaced(value: Any, key: Any, at: Callable[[Any], Any], other: Any) -> Any:
    """The value with something else at a place below this key."""
    copy = value.copy()
    copy[key] = at(other)
    return copy

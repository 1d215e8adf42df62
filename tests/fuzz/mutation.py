"""Ways to hurt a valid sample, each in the form that its reader parses first.

Random bytes are refused by the first check and find nothing behind it. So a number is changed inside JSON that stays
JSON, a field inside a message that stays a message, and a checksum is made right again.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.support.hostile import RAW, SCALARS

Case = tuple[bytes, ...]
Form = Callable[[random.Random, bytes], bytes]
MAX_PART_BYTES = 128 << 10
_DEEP, _TWICE = "@deep@", "@twice@"
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_NUMBERS = (b"0", b"-1", b"1", b"255", b"65536", b"2147483648", b"9223372036854775807", b"9223372036854775808")
_ODD_NUMBERS = (b"1" + b"0" * 400, b"9" * 5000, b"1e999", b"-", b".", b"1e", b"nan", b"-0", b"0x10", b"\xd9\xa3")
_PIECES = (b"\0", b"\x1b[2J", b"\n", b"\r\n", b"\xff", b"\xed\xa0\x80", b"\xe2\x80\xae", b"../", b"[" * 2000, b'"')
_MOST_STEPS = 30
_WORDS = ("", "\0", "\ud800", "\u202e", "\x1b[2J\n", "..", "/", "a" * 300, "\u00e9" * 70_000, "{0-99999}", "(a|a)*" * 9)


def hurt(rng: random.Random, case: Case, forms: Sequence[Form], pool: Sequence[Case]) -> Case:
    """The case with some of its parts hurt, or taken from another case. The last form is that of all further parts."""
    parts = list(case)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        said = [at for at, part in enumerate(parts) if part]
        at = rng.choice(said) if said and rng.random() < 0.9 else rng.randrange(len(parts))
        form, other = forms[min(at, len(forms) - 1)], rng.choice(pool)
        if form is choice or rng.random() < 0.05:
            parts[at] = other[min(at, len(other) - 1)]
        else:
            parts[at] = form(rng, parts[at])[:MAX_PART_BYTES]
    return tuple(parts)


def choice(_: random.Random, part: bytes) -> bytes:
    """A word of the target's own, which is only ever exchanged for another one."""
    return part


def raw(rng: random.Random, part: bytes) -> bytes:
    """Bytes: cut, repeated, flipped, or with a number or a piece that has misled somebody."""
    return rng.choice((_flipped, _cut, _repeated, _inserted, _renumbered, _renumbered, _replaced))(rng, part)


def _flipped(rng: random.Random, part: bytes) -> bytes:
    if not part:
        return b"\0"
    at = rng.randrange(len(part))
    return part[:at] + bytes([part[at] ^ (1 << rng.randrange(8))]) + part[at + 1 :]


def _span(rng: random.Random, part: bytes) -> tuple[int, int]:
    start = rng.randrange(len(part) + 1)
    return start, min(len(part), start + rng.choice((1, 4, 40, len(part))))


def _cut(rng: random.Random, part: bytes) -> bytes:
    start, end = _span(rng, part)
    return part[:start] + part[end:]


def _repeated(rng: random.Random, part: bytes) -> bytes:
    start, end = _span(rng, part)
    return part[:start] + part[start:end] * rng.choice((2, 3, 50, 2000)) + part[end:]


def _inserted(rng: random.Random, part: bytes) -> bytes:
    at = rng.randrange(len(part) + 1)
    return part[:at] + rng.choice(_PIECES) + part[at:]


def _renumbered(rng: random.Random, part: bytes) -> bytes:
    found = list(_NUMBER.finditer(part))
    if not found:
        return _inserted(rng, part)
    one = rng.choice(found)
    return part[: one.start()] + rng.choice((*_NUMBERS, *_ODD_NUMBERS)) + part[one.end() :]


def _replaced(rng: random.Random, _: bytes) -> bytes:
    return rng.choice(RAW)


def as_json(rng: random.Random, part: bytes) -> bytes:
    """JSON that stays JSON, as a rule."""
    try:
        value = json.loads(part)
    except (ValueError, RecursionError):
        return raw(rng, part)
    return raw(rng, part) if rng.random() < 0.1 else json_bytes(hurt_json(rng, value))


def json_bytes(value: object) -> bytes:
    """A value as JSON; what stands for depth becomes deep."""
    try:
        text = json.dumps(value).encode()
    except (ValueError, RecursionError):
        return b"[" * 3000
    return text.replace(f'"{_DEEP}"'.encode(), b"[" * 400 + b"]" * 400).replace(_TWICE.encode(), b"")


def hurt_json(rng: random.Random, value: Any) -> Any:
    """The value with one of its places hurt."""
    place = rng.choice(list(_places(value, ())))
    return _changed(value, place, rng)


def _places(value: Any, way: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield way
    if isinstance(value, dict | list) and len(way) < 20:
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in list(entries)[:200]:
            yield from _places(inner, (*way, key))


def _changed(value: Any, way: tuple[Any, ...], rng: random.Random) -> Any:
    if not way:
        return _other(rng, value)
    copy = value.copy()
    if len(way) == 1 and rng.random() < 0.3:
        return _rekeyed(rng, copy, way[0])
    copy[way[0]] = _changed(value[way[0]], way[1:], rng)
    return copy


def _rekeyed(rng: random.Random, parent: Any, key: Any) -> Any:
    """A dictionary or list without an entry, with it under another name, or with very many like it."""
    inner = parent.pop(key)
    how = rng.randrange(4)
    if isinstance(parent, list):
        parent[key:key] = [inner] * (0, 2, 3, 3000)[how]
        return parent
    # A name with a mark that is taken out when it is written stands twice.
    more = (
        {},
        {f"{_TWICE}{key}": 1, key: inner},
        {rng.choice(_WORDS): inner},
        {f"{key}{n}": inner for n in range(600)},
    )
    return parent | more[how]


def _other(rng: random.Random, value: Any) -> Any:
    how = rng.random()
    if how < 0.3 and isinstance(value, int | float) and not isinstance(value, bool):
        odd = (value + 1, -value - 1, value * 1000 + 7, 0.5, 1 << 31, (1 << 63) - 1, 1 << 63, 10**400)
        return rng.choice((*odd, float("inf"), float("nan"), 1e308, str(value)))
    if how < 0.4 and isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        return rng.choice((value[:at] + rng.choice(_WORDS) + value[at:], value * 50, value.upper(), [value]))
    if how < 0.5:
        return rng.choice((_DEEP, [value], {"a": value}, [value] * 50))
    return rng.choice((*SCALARS, *_WORDS))


def steps(rng: random.Random, part: bytes) -> bytes:
    """Lines of words, with one left out, moved, exchanged in a word or number, or done many times."""
    lines = part.splitlines() or [b""]
    at, other = rng.randrange(len(lines)), rng.choice(lines)
    words = lines[at].split() or [b""]
    words[rng.randrange(len(words))] = rng.choice((*other.split(), b"1", b"7", b"20"))
    made = ([], [other, lines[at]], [b" ".join(words)], [b" ".join(words)], [lines[at]] * 3)
    lines[at : at + 1] = rng.choice(made)
    return b"\n".join(lines[:_MOST_STEPS])


def safetensors(rng: random.Random, part: bytes) -> bytes:
    """A file of weights whose length fits its header, as a rule."""
    length = int.from_bytes(part[:8], "little")
    header, body = part[8 : 8 + length], part[8 + length :]
    if length > len(part) or rng.random() < 0.1:
        return raw(rng, part)
    if rng.random() < 0.2:
        return part[: 8 + length] + raw(rng, body)
    header = as_json(rng, header)
    length = len(header) if rng.random() < 0.95 else rng.choice((0, 1 << 63, max(0, len(header) - 1)))
    return length.to_bytes(8, "little") + header + body


_TAR_FIELDS = ((0, 100), (100, 8), (108, 8), (124, 12), (136, 12), (156, 1), (157, 100), (257, 8), (345, 155))
_TAR_VALUES = (b"\0", b"7" * 12, b"-1", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"99999999999", b"../", b"/etc/x", b"x")


def tar(rng: random.Random, part: bytes) -> bytes:
    """An archive with a member's header changed, whose checksum is made right again."""
    headers = [at for at in range(0, len(part) - 511, 512) if part[at + 257 : at + 262] == b"ustar"]
    if not headers or rng.random() < 0.2:
        return raw(rng, part)
    at, (start, size) = rng.choice(headers), rng.choice(_TAR_FIELDS)
    value = rng.choice((*_TAR_VALUES, *(bytes([kind]) for kind in b"01234567xgKLSV")))[:size]
    block = bytearray(part[at : at + 512])
    block[start : start + size] = value.ljust(size, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return part[:at] + bytes(block) + part[at + 512 :]


def protobuf(rng: random.Random, part: bytes) -> bytes:
    """A message with a field dropped, repeated, renumbered, or with another content."""
    fields = fields_of(part)
    if not fields or rng.random() < 0.1:
        return raw(rng, part)
    at = rng.randrange(len(fields))
    number, content = fields[at]
    made = (
        list,
        lambda: [fields[at]] * rng.choice((2, 2, 300)),
        lambda: [(rng.choice((1, 2, 3, 7, 19_000, (1 << 29) - 1)), content)],
        lambda: [(number, _content(rng, content))],
    )[rng.choice((0, 1, 2, 3, 3, 3, 3))]()
    return message_of([*fields[:at], *made, *fields[at + 1 :]])


def _content(rng: random.Random, content: int | bytes) -> int | bytes:
    if isinstance(content, int):
        return rng.choice((0, 1, 2, 127, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1))
    if rng.random() < 0.6 and fields_of(content):
        return protobuf(rng, content)
    if rng.random() < 0.4:
        return rng.choice(_WORDS).encode(errors="surrogatepass")
    return as_json(rng, content)


def fields_of(part: bytes) -> list[tuple[int, int | bytes]]:
    """Number and content of each field of a message; none: it is no message that this reads."""
    found: list[tuple[int, int | bytes]] = []
    at = 0
    try:
        while at < len(part):
            tag, at = _varint(part, at)
            value, at = _varint(part, at)
            if tag >> 3 == 0 or tag & 7 not in {0, 2} or (tag & 7 == 2 and at + value > len(part)):
                return []
            found.append((tag >> 3, value if tag & 7 == 0 else part[at : at + value]))
            at += value if tag & 7 == 2 else 0
    except IndexError:
        return []
    return found


def _varint(part: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (part[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not part[at - 1] & 0x80:
            return value, at


def message_of(fields: Sequence[tuple[int, int | bytes]]) -> bytes:
    """The message of these fields."""
    made = b""
    for number, content in fields:
        is_number = isinstance(content, int)
        made += _written(number << 3 | (0 if is_number else 2))
        made += _written(content) if isinstance(content, int) else _written(len(content)) + content
    return made


def _written(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def metrics(rng: random.Random, part: bytes) -> bytes:
    """A page of metrics on which one sample has another value, or stands more than once."""
    lines = part.splitlines(keepends=True)
    samples = [at for at, line in enumerate(lines) if b" " in line and not line.startswith(b"#")]
    if not samples or rng.random() < 0.2:
        return raw(rng, part)
    at = rng.choice(samples)
    line = lines[at].rpartition(b" ")[0] + b" " + rng.choice((*_NUMBERS, *_ODD_NUMBERS)) + b"\n"
    lines[at] = rng.choice((line, line, line, lines[at] + line, raw(rng, lines[at])))
    return b"".join(lines)


def journal(rng: random.Random, part: bytes) -> bytes:
    """Lines of a journal, one of them hurt below its checksum."""
    lines = part.splitlines(keepends=True)
    if not lines or rng.random() < 0.2:
        return raw(rng, part)
    at = rng.randrange(len(lines))
    body = as_json(rng, lines[at][9:].rstrip(b"\n")) + b"\n"
    lines[at] = b"%08x %s" % (zlib.crc32(body), body)
    return b"".join(lines)


def snapshot(rng: random.Random, part: bytes) -> bytes:
    """Lines of a snapshot, one of them hurt, with the checksum that they have then."""
    *lines, _ = part.splitlines(keepends=True) or [b""]
    if not lines or rng.random() < 0.2:
        return raw(rng, part)
    at = rng.randrange(len(lines))
    head, tab, value = lines[at].rstrip(b"\n").partition(b"\t")
    if tab and rng.random() < 0.5:
        lines[at] = head + tab + as_json(rng, value) + b"\n"
    else:
        lines[at] = as_json(rng, head) + tab + value + b"\n"
    told = json.dumps({"sha256": hashlib.sha256(b"".join(lines)).hexdigest()}, separators=(",", ":"))
    return b"".join(lines) + told.encode() + b"\n"

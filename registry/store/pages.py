"""Filters, page tokens and pages of listings. Pure.

A token says which listing, at which revision, after which key; it is opaque to callers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic

from registry.etcd3.ops import KeyValue
from registry.model.errors import InvalidArgument, Reason, RegistryError
from registry.model.names import name_of_key
from registry.model.records import AdapterRecord
from registry.model.stored import read_json
from registry.transactions.decode import Present, RecordT

_TERM = re.compile(r"(name|tenant|load|label\.[A-Za-z0-9][A-Za-z0-9._/-]*)=(.*)", re.ASCII | re.DOTALL)
_MAX_CHARACTERS = 2048


@dataclass(frozen=True, slots=True)
class Filter:
    """Terms that an adapter must fulfil."""

    terms: tuple[Callable[[AdapterRecord], bool], ...]

    def takes(self, record: AdapterRecord) -> bool:
        """True if the adapter fulfils every term."""
        return all(term(record) for term in self.terms)


def parse_filter(text: str) -> Filter:
    """Reads a filter; an empty one takes everything.

    Raises:
        InvalidArgument: it cannot be read.
    """
    if len(text) > _MAX_CHARACTERS:
        raise InvalidArgument(
            Reason.INVALID_FILTER, f"a filter has at most {_MAX_CHARACTERS} characters", field="filter"
        )
    return Filter(tuple(_term(term.strip()) for term in text.split(" AND ")) if text.strip() else ())


def _term(term: str) -> Callable[[AdapterRecord], bool]:
    match = _TERM.fullmatch(term)
    if match is None:
        raise InvalidArgument(
            Reason.INVALID_FILTER,
            f"{term[:100]!r} is not a term: write field=value with name (a trailing * for a prefix), tenant, load or "
            'label.KEY, joined by " AND "',
            field="filter",
        )
    field, value = match.groups()
    return _test(field, value)


def _test(field: str, value: str) -> Callable[[AdapterRecord], bool]:
    match field:
        case "name" if value.endswith("*"):
            prefix = value[:-1].lower()
            return lambda record: record.name.lower().startswith(prefix)
        case "name":
            return lambda record: record.name.lower() == value.lower()
        case "tenant":
            return lambda record: record.tenant == value.lower()
        case "load":
            return lambda record: record.spec.load == value
        case _:
            key = field.removeprefix("label.")
            return lambda record: record.spec.labels.get(key) == value


DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
PLACES_AT_MOST = 10_000


def check_page_size(size: int) -> int:
    """The number of items of a page; 0 means the default, and more than the most means the most.

    Raises:
        InvalidArgument: it is negative.
    """
    if size < 0:
        raise InvalidArgument(Reason.INVALID_FIELD, "a page has at least one item; 0 means 100", field="page_size")
    return min(size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


@dataclass(frozen=True, slots=True)
class PageToken:
    """Token of the next page: after `after`, at `revision`.

    `place`: the number of a later place at which to go on, if this process still knows it; see `UnseenPlaces`. 0: none.
    """

    revision: int
    after: bytes
    place: int = 0

    def encode(self, listing: str) -> str:
        """The token as text; `listing` says what is listed, and must be the same when it comes back."""
        document = [self.revision, self.after.hex(), _digest(listing), *([self.place] if self.place else ())]
        return base64.urlsafe_b64encode(json.dumps(document).encode()).decode()


def decode_token(text: str, listing: str) -> PageToken | None:
    """The token that `encode` made; None for the first page.

    Raises:
        InvalidArgument: it is none of ours, or of another listing.
    """
    if not text:
        return None
    try:
        revision, after, digest, *place = read_json(base64.b64decode(text, altchars=b"-_", validate=True))
        token = PageToken(_positive(revision), bytes.fromhex(after), *map(_positive, place))  # TypeError: one too many
    except (ValueError, TypeError) as error:
        raise no_page_token() from error
    if digest != _digest(listing):
        raise _refused("that page token is of another listing; repeat the request that it came from unchanged")
    return token


def _positive(number: object) -> int:
    if type(number) is not int or not 0 < number < 2**63:
        raise ValueError("neither a revision nor a place")
    return number


def no_page_token() -> InvalidArgument:
    """The refusal of a token that this service cannot have made."""
    return _refused("that is no page token of this service; start again without one")


def _refused(message: str) -> InvalidArgument:
    return InvalidArgument(Reason.INVALID_PAGE_TOKEN, message, field="page_token")


def _digest(listing: str) -> str:
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


class UnseenPlaces:
    """Places at which pages ended amid what their readers do not see, which no token may name.

    A token has the last name that its reader saw, and the number of the place. Whoever does not know the number, as
    another admin service, reads from that name on: the same records, only later.
    """

    def __init__(self) -> None:
        self._kept: dict[int, bytes] = {}

    def keep(self, place: PageToken, seen: bytes, number: int) -> PageToken:
        """The token for a place, which names a key that was seen instead; `number`: a random one, above 0."""
        self._kept[number] = place.after
        if len(self._kept) > PLACES_AT_MOST:
            del self._kept[next(iter(self._kept))]
        return PageToken(place.revision, seen, number)

    def found(self, token: PageToken) -> PageToken:
        """The token of where to go on."""
        return PageToken(token.revision, self._kept.get(token.place, token.after))


@dataclass(frozen=True, slots=True)
class Page:
    """Some keys of a listing at one revision. `token` None: these were the last."""

    revision: int
    kvs: tuple[KeyValue, ...]
    token: PageToken | None


@dataclass(frozen=True, slots=True)
class RecordPage(Generic[RecordT]):
    """Some records of a listing. `unreadable` are names, as the keys have them, whose records cannot be read."""

    revision: int
    records: tuple[Present[RecordT], ...]
    unreadable: tuple[str, ...]
    token: PageToken | None


def name_below(prefix: bytes, key: bytes) -> str:
    """The name that a key below a prefix has; also of one that somebody wrote further down, with its "/"."""
    return name_of_key(key[len(prefix) :].decode(errors="backslashreplace"))


def everything(_: str) -> bool:
    """Takes every name, for whoever sees all."""
    return True


@dataclass(slots=True)
class Sieve(Generic[RecordT]):
    """Takes readable and wanted records out of pages, until it has `size` of them.

    `prefix`: of the keys. `sees`: tells by its name, as the key has it behind that, whether a record is its reader's to
    know of. `ended_seen`: whether the one that was looked at last is; a token names that one, so only then it may be
    handed out. `last_seen`: the key of the last one that is.
    """

    prefix: bytes
    read: Callable[[KeyValue], RecordT]
    takes: Callable[[RecordT], bool]
    size: int
    sees: Callable[[str], bool] = everything
    ended_seen: bool = True
    last_seen: bytes = b""
    records: list[Present[RecordT]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def is_full(self) -> bool:
        return len(self.records) >= self.size

    def pass_through(self, page: Page) -> RecordPage[RecordT]:
        """Page of what has been taken so far; its token follows the last record that was looked at."""
        token = page.token
        for kv in page.kvs:
            if self.is_full():
                break
            self._look_at(kv)
            token = page.token if kv is page.kvs[-1] else PageToken(page.revision, kv.key)
        return RecordPage(page.revision, tuple(self.records), tuple(self.unreadable), token)

    def _look_at(self, kv: KeyValue) -> None:
        name = name_below(self.prefix, kv.key)
        self.ended_seen = self.sees(name)
        if not self.ended_seen:
            return
        self.last_seen = kv.key
        try:
            record = self.read(kv)
        except RegistryError:
            self.unreadable.append(name)
            return
        if self.takes(record):
            self.records.append(Present(record, kv.mod_revision))

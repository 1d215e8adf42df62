"""Page tokens: which listing, at which revision, after which key. Opaque to callers. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass

from registry.errors import InvalidArgument, Reason

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000


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
    """Where the next page starts: after `after`, at `revision`."""

    revision: int
    after: bytes

    def encode(self, listing: str) -> str:
        """The token as text; `listing` says what is listed, and must be the same when it comes back."""
        document = [self.revision, self.after.hex(), _digest(listing)]
        return base64.urlsafe_b64encode(json.dumps(document).encode()).decode()


def decode_token(text: str, listing: str) -> PageToken | None:
    """The token that `encode` made; None for the first page.

    Raises:
        InvalidArgument: it is none of ours, or of another listing.
    """
    if not text:
        return None
    try:
        revision, after, digest = json.loads(base64.b64decode(text, altchars=b"-_", validate=True))
        token = PageToken(_positive(revision), bytes.fromhex(after))
    except (binascii.Error, ValueError, TypeError, RecursionError) as error:
        raise _refused("that is no page token of this service; start again without one") from error
    if digest != _digest(listing):
        raise _refused("that page token is of another listing; repeat the request that it came from unchanged")
    return token


def _positive(revision: object) -> int:
    if type(revision) is not int or not 0 < revision < 2**63:
        raise ValueError("not a revision")
    return revision


def _refused(message: str) -> InvalidArgument:
    return InvalidArgument(Reason.INVALID_PAGE_TOKEN, message, field="page_token")


def _digest(listing: str) -> str:
    return hashlib.sha256(listing.encode()).hexdigest()[:16]

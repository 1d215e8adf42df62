"""List of models of the API server, without names that are on their way out.

Routers poll this page, every 5 seconds as a rule, and send a name's requests where it is listed. So a name leaves the
list before the engine stops to answer to it:

- A name that is unloaded is left out at once, for everybody, and answers on for `hide_seconds`. For the sidecar it is
  gone, so that its status leads nobody there; its files count as in use until the requests for it have ended.
- While the replica drains all adapters are left out for everybody but the sidecar, except those that nobody else serves
  yet. The sidecar names these, and has to say it again and again: if it dies, all come back.

The server itself makes each card, so that no byte is otherwise than in its own list but the times and random numbers in
it. A card is made once for each load. Nothing here refers to an adapter: that would count as a use of it.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .server import ApiServer, EngineAdapter, EngineRefused

HIDE_SECONDS = 5.0
MAX_HIDE_SECONDS = 600.0
# Stands where the cards are, in the list that the server writes.
_CARDS = "\0"


@dataclass(frozen=True, slots=True)
class _Frame:
    """The list without the adapters: `head`, the cards of the base models, and what follows them."""

    head: bytes
    bases: tuple[bytes, ...]
    tail: bytes

    def around(self, cards: Iterable[bytes]) -> bytes:
        """The list with these cards of adapters."""
        return self.head + b",".join([*self.bases, *cards]) + self.tail


class PublicListing:
    """The list of one API server, and which names it leaves out.

    Attributes:
        hide_seconds: for which a name that is unloaded answers on; 0: it stops at once.
        changes: how often a name was left out or came back.
    """

    def __init__(self, server: ApiServer, hide_seconds: float = 0.0) -> None:
        self._server = server
        self.hide_seconds = hide_seconds if server.lister is not None else 0.0
        self.changes = 0
        self._leaving: dict[str, int] = {}
        self._all_hidden_until, self._kept = -math.inf, frozenset[str]()
        self._frame: _Frame | None = None
        self._cards: dict[tuple[str, int, str], bytes] = {}
        self._pages: dict[frozenset[str] | None, tuple[tuple[int, int], bytes]] = {}

    @property
    def is_there(self) -> bool:
        """True if the server lets its list be made here."""
        return self._server.lister is not None

    def leave(self, adapter: EngineAdapter) -> bool:
        """Leaves the name of a registered adapter out from now on; False: it is left out already."""
        if self.is_leaving(adapter):
            return False
        self._leaving[adapter.lora_name] = adapter.lora_int_id
        self.changes += 1
        return True

    def stay(self, name: str) -> None:
        """Lists the name again, if it is registered."""
        if self._leaving.pop(name, None) is not None:
            self.changes += 1

    def is_leaving(self, adapter: EngineAdapter) -> bool:
        """True if the name is on its way out with these weights; others under it are listed."""
        return self._leaving.get(adapter.lora_name) == adapter.lora_int_id

    def hide_all(self, seconds: float, kept: frozenset[str] = frozenset()) -> None:
        """Leaves all adapters but the `kept` out for so long, for everybody but the sidecar; 0: lists them again."""
        self._all_hidden_until = asyncio.get_running_loop().time() + seconds
        if kept != self._kept:
            self._kept, self._pages = kept, {}

    async def page(self, *, whole: bool) -> bytes:
        """The list as the server would write it now; `whole`: for the sidecar.

        Raises:
            EngineRefused: the server does not let it be made here.
        """
        is_hidden = not whole and asyncio.get_running_loop().time() < self._all_hidden_until
        if is_hidden and not self._kept:
            return (await self._framed()).around(())
        among = self._kept if is_hidden else None
        stamp = (self._server.registered.changes, self.changes)
        if (made := self._pages.get(among)) is None or made[0] != stamp:
            made = self._pages[among] = (stamp, await self._made(among))
        return made[1]

    async def _made(self, among: frozenset[str] | None) -> bytes:
        frame, cards = await self._framed(), dict[tuple[str, int, str], bytes]()
        for name, adapter in list(self._server.registered.items()):
            key = (name, adapter.lora_int_id, adapter.lora_path)
            cards[key] = self._cards.get(key) or await self._card(name, adapter, len(frame.bases))
        self._cards = cards
        staying = ((name, card) for (name, number, _), card in cards.items() if self._leaving.get(name) != number)
        return frame.around(card for name, card in staying if among is None or name in among)

    async def _framed(self) -> _Frame:
        """Made once: what a server calls its base models stays so."""
        if self._frame is None:
            found = await self._asked({})
            bases = tuple(map(_written, found["data"]))
            head, _, tail = _written(found | {"data": [_CARDS]}).partition(_written(_CARDS))
            self._frame = _Frame(head, bases, tail)
        return self._frame

    async def _card(self, name: str, adapter: EngineAdapter, bases: int) -> bytes:
        found = await self._asked({name: adapter})
        return b",".join(map(_written, found["data"][bases:]))

    async def _asked(self, adapters: Mapping[str, EngineAdapter]) -> dict[str, Any]:
        lister = self._server.lister
        if lister is None:
            raise EngineRefused("the engine does not let its list be made here")
        return await lister(adapters)


def _written(value: object) -> bytes:
    """JSON as the server writes it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def hide_seconds_of(text: str) -> float:
    """Seconds in a variable of the environment; empty: the usual ones.

    Raises:
        ValueError: it is no number of 0 to 600.
    """
    seconds = float(text) if text.strip() else HIDE_SECONDS
    if not 0 <= seconds <= MAX_HIDE_SECONDS:
        raise ValueError(f"{text!r} is no number of seconds from 0 to {MAX_HIDE_SECONDS:g}")
    return seconds

"""What a member of the modelled cluster tells a watcher, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from registry.etcd3 import rpc_pb2 as rpc
from registry.etcd3.ops import Event
from registry.etcd3.stream import progress_is_safe
from tests.simulation import wire
from tests.simulation.members import Member
from tests.simulation.store import Revision


class Watch:
    """One watch stream on a member, with one watch on it."""

    def __init__(
        self, member: Member, client: str, send: Callable[[rpc.WatchResponse], None], tear: Callable[[], None]
    ) -> None:
        """`tear` breaks the stream alone, beside which the others on its connection go on."""
        self._member = member
        self._client = client
        self._deliver = send
        self._tear = tear
        self._held: list[rpc.WatchResponse] | None = None
        self._next = 0
        self._key, self._end = b"", b""
        self._is_due = False
        self._is_open = False
        self._has_caught_up = False
        self._noted: list[list[Event]] = []

    def receive(self, request: rpc.WatchRequest) -> None:
        """Takes a message of the client."""
        if request.HasField("create_request"):
            self._create(request.create_request)
        elif request.HasField("progress_request"):
            self._tell_progress()

    def _send(self, response: rpc.WatchResponse) -> None:
        if self._held is None:
            self._deliver(response)
        else:
            self._held.append(response)

    @property
    def whose(self) -> tuple[str, bytes]:
        """The client, and the first of the keys that it watches."""
        return self._client, self._key

    def tear(self) -> None:
        """Breaks it alone."""
        self._tear()

    def mute(self) -> Callable[[], None]:
        """Holds back whatever this watch alone would say, until what is returned is called."""
        self._held = [] if self._held is None else self._held
        return self._unmute

    def _unmute(self) -> None:
        held, self._held = self._held or [], None
        for response in held:
            self._deliver(response)

    def close(self) -> None:
        """Ends it; nothing more is sent."""
        self._is_open = False
        if self in self._member.watches:
            self._member.watches.remove(self)

    def cancel(self, reason: str, compact_revision: int = 0) -> None:
        """Tells the client that the watch is over."""
        self.close()
        header = self._member.header(self._member.applied)
        self._send(
            rpc.WatchResponse(header=header, canceled=True, cancel_reason=reason, compact_revision=compact_revision)
        )

    def wake(self) -> None:
        """The member knows more than before. To a watch that has caught up that is noted at once."""
        if not self._is_open:
            return
        if self._has_caught_up:
            self._note(self._member.store.since(self._next, compacted=0))
            if not self._noted:
                return  # nothing of what is new is for this watch
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(self._member.batch_seconds(), self._pump)

    def _create(self, request: rpc.WatchCreateRequest) -> None:
        member = self._member
        if member.is_isolated:
            self.cancel("etcdserver: no leader")
            return
        self._key, self._end = request.key, request.range_end
        self._next = request.start_revision or member.applied + 1
        self._is_open = True
        member.watches.append(self)
        self._send(rpc.WatchResponse(header=member.header(member.applied), created=True))
        self.wake()

    def _pump(self) -> None:
        """Sends what is noted, some revisions to a message; a watch that is behind catches up with what is kept."""
        self._is_due = False
        if not self._is_open:
            return
        store = self._member.store
        if not self._has_caught_up:
            if self._next < store.compacted:
                self.cancel("etcdserver: mvcc: required revision has been compacted", store.compacted)
                return
            self._note(store.since(self._next, store.compacted))
            self._has_caught_up = True
        while self._noted:
            count = self._member.split(len(self._noted))
            self._send_events([event for events in self._noted[:count] for event in events])
            self._noted = self._noted[count:]

    def _note(self, revisions: Iterable[Revision]) -> None:
        for number, events in revisions:
            if number <= self._member.applied and (mine := self._matching(events)):
                self._noted.append(mine)
        self._next = max(self._next, self._member.applied + 1)

    def _matching(self, events: tuple[Event, ...]) -> list[Event]:
        if not self._end:
            return [event for event in events if event.key == self._key]
        return [event for event in events if self._key <= event.key < self._end]

    def _send_events(self, events: list[Event]) -> None:
        size = self._member.habits.fragment_events or len(events)
        for start in range(0, len(events), size):
            part = [wire.event(event) for event in events[start : start + size]]
            is_more = start + size < len(events)
            header = self._member.header(self._member.applied)
            self._send(rpc.WatchResponse(header=header, events=part, fragment=is_more))

    def _tell_progress(self) -> None:
        member = self._member
        if not self._is_open:
            return
        if progress_is_safe(member.habits.version):
            if self._has_caught_up and not self._noted:
                self._send(rpc.WatchResponse(header=member.header(self._next - 1)))
        else:  # may overtake what is still to be sent
            self._send(rpc.WatchResponse(header=member.header(member.applied)))

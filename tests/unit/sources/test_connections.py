"""How long a source may keep us waiting, by a clock of the test's own, and that what was judged is connected to."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpcore
import pytest

from registry.sources import connections
from registry.sources.base import SourceLimits, Stop
from registry.sources.connections import ConnectionPool, SourceRequests, Watch, WatchedStream, check_leads
from registry.sources.urls import Reach
from tests.unit.sources.conftest import refused

LIMITS = SourceLimits()


class Slow:
    """A source whose reads take as long as told, on the clock that the watch reads."""

    def __init__(self, monkeypatch) -> None:
        self.now, self.stop, self.waits = 0.0, Stop(), list[float]()
        self.watch = Watch(LIMITS, self.stop)
        monkeypatch.setattr(connections, "perf_counter", lambda: self.now)

    def read(self, size_bytes: int, seconds: float) -> None:
        def take(_: float) -> bytes:
            self.now += seconds
            return bytes(size_bytes)

        self.watch.read(take, LIMITS.idle_seconds)

    def read_in_silence(self, timeout_seconds: float, *, speaks_after: float = 1e9, stops_after: float = 1e9) -> bytes:
        """It says nothing; after so long it does, or we are stopped."""

        def take(seconds: float) -> bytes:
            self.waits.append(seconds)
            self.now += seconds
            if self.now >= stops_after:
                self.stop.set()
            if self.now >= speaks_after:
                return b"x"
            raise httpcore.ReadTimeout

        return self.watch.read(take, timeout_seconds)

    def trickle(self) -> float:
        """A byte a second from now on; gives after how many seconds it is given up."""
        begun = self.now
        with pytest.raises(httpcore.ReadTimeout, match="too slow"):
            self._drip(begun + 1800)
        return self.now - begun

    def _drip(self, until: float) -> None:
        while self.now < until:
            self.read(1, 1.0)


@pytest.fixture
def slow(monkeypatch) -> Slow:
    return Slow(monkeypatch)


def test_a_source_that_sends_too_little_is_given_up_after_one_look_however_fast_it_was(slow, monkeypatch):
    """R8, R16: what came long ago does not count, else a gigabyte would buy days at a byte a second."""
    assert slow.trickle() == LIMITS.pace_seconds
    fast = Slow(monkeypatch)
    while fast.now <= 2 * LIMITS.pace_seconds:
        fast.read(1 << 20, 0.005 if fast.now else 0.5)
    assert fast.trickle() <= 2 * LIMITS.pace_seconds


def test_what_we_do_with_it_ourselves_is_no_fault_of_the_source(slow):
    """A slow disk of ours lies between the reads."""
    for _ in range(100):
        slow.read(LIMITS.min_bytes_per_second, 1.0)
        slow.now += 60.0


def test_a_connection_that_breaks_is_not_waited_for(slow):
    read = Mock(side_effect=[httpcore.ReadError("broken"), b"x"])
    with pytest.raises(httpcore.ReadError, match="broken"):
        slow.watch.read(read, LIMITS.idle_seconds)


@pytest.mark.parametrize(
    ("timeout_seconds", "waits"),
    [(3.25, [0.5] * 6 + [0.25]), (1.0, [0.5, 0.5]), (0.5, [0.5]), (0.25, [0.25]), (0.0, [0.001])],
)
def test_a_silent_source_is_waited_for_as_long_as_was_said(slow, timeout_seconds, waits):
    """R8, R12: at most half a second long, so that a staging which is stopped does not wait on."""
    with pytest.raises(httpcore.ReadTimeout):
        slow.read_in_silence(timeout_seconds)
    assert slow.waits == pytest.approx(waits)
    assert not slow.watch.has_answer
    assert slow.read_in_silence(3.25, speaks_after=slow.now + 3.0) == b"x"
    assert slow.watch.has_answer
    begun = slow.now
    stopped = refused(slow.read_in_silence, 30.0, stops_after=begun + 1.0)
    assert (stopped.reason, slow.now - begun) == ("staging_stopped", pytest.approx(1.0))


def test_a_read_waits_as_long_as_is_said_or_else_as_a_source_may_rest():
    """R8."""
    watch = Mock(limits=LIMITS)
    for said, expected in ((3.25, 3.25), (0.0, 0.0), (None, LIMITS.idle_seconds)):
        WatchedStream(Mock(), watch).read(10, said)
        assert watch.read.call_args.args[1] == expected


@pytest.mark.parametrize(("rate", "is_kept"), [(4096, True), (4095, False)])
def test_4096_bytes_a_second_are_enough_of_a_source(slow, rate, is_kept):
    """R8, R16: on average over half a minute."""
    for _ in range(29):
        slow.read(rate, 1.0)
    if is_kept:
        slow.read(rate, 1.0)
        slow.read(0, 29.0)
        return
    with pytest.raises(httpcore.ReadTimeout):
        slow.read(rate, 1.0)


class Kept:
    """A connection that may be kept, or not."""

    def __init__(self, place: str = "here", *, may_be_kept: bool = True) -> None:
        self.place = (Reach.NAMED, place)
        self.may_be_kept = may_be_kept
        self.is_expired = False
        self.times_closed = 0

    def has_expired(self) -> bool:
        return self.is_expired

    def close(self) -> None:
        self.times_closed += 1


def pool_with(*kept: Kept) -> ConnectionPool:
    made = ConnectionPool(lambda: pytest.fail("no TLS is needed"), LIMITS)
    for one in kept:
        made.give(one)  # type: ignore[arg-type]
    return made


def test_the_newest_connection_to_a_place_is_taken_and_is_nobody_else_s_then():
    """X1, R4: two stagings on one would get each other's bytes."""
    old, new, other = Kept(), Kept(), Kept("there")
    pool = pool_with(old, new, other)
    assert pool.take((Reach.PUBLIC, "here")) is None, "it was judged for less"
    assert [pool.take((Reach.NAMED, "here")) for _ in range(3)] == [new, old, None]
    assert pool.take((Reach.NAMED, "there")) is other
    assert [one.times_closed for one in (old, new, other)] == [0, 0, 0]


def test_what_has_expired_or_may_not_be_kept_is_closed_once_and_after_the_end_all(monkeypatch):
    """R16, R4: the next bytes on it would be taken for another answer; a staging may end later than all."""
    old, new, other, late = Kept(), Kept(), Kept(may_be_kept=False), Kept()
    pool = pool_with(old, new, other)
    new.is_expired = True
    assert pool.take((Reach.NAMED, "here")) is old
    assert pool.take((Reach.NAMED, "here")) is None
    pool.close()
    pool.give(late)  # type: ignore[arg-type]
    assert pool.take(late.place) is None
    assert [one.times_closed for one in (old, new, other, late)] == [0, 1, 1, 1]


@pytest.mark.parametrize("has_answer", [False, True])
@pytest.mark.parametrize("error", [httpcore.ReadError(), httpcore.WriteError(), httpcore.RemoteProtocolError()])
def test_what_was_closed_at_its_other_end_while_it_was_kept_says_nothing_of_the_source(monkeypatch, error, has_answer):
    """R8: it is asked anew on a new connection, unless an answer had begun."""
    kept, new = Kept("http://host:80"), Kept("http://host:80")
    pool = pool_with(kept)
    requests = SourceRequests(pool, Stop())

    def breaks(_request: object, watch: Watch) -> None:
        watch.has_answer = has_answer
        raise error

    monkeypatch.setattr(kept, "send", breaks, raising=False)
    monkeypatch.setattr(new, "send", lambda *_: SimpleNamespace(close=lambda: None), raising=False)
    monkeypatch.setattr(pool, "open", lambda *_: new)
    if has_answer:
        with pytest.raises(type(error)):
            requests.get("http://host/", Reach.NAMED, ())
        return
    requests.get("http://host/", Reach.NAMED, ())
    requests.close()
    assert pool.take(new.place) is new
    assert pool.take(new.place) is None


def test_32_connections_are_kept_and_the_oldest_makes_room():
    """R16 bounded."""
    kept = [Kept() for _ in range(33)]
    pool = pool_with(*kept[:32])
    assert sum(one.times_closed for one in kept) == 0
    pool.give(kept[32])  # type: ignore[arg-type]
    assert [one.times_closed for one in kept] == [1] + [0] * 32
    pool.close()
    assert [one.times_closed for one in kept] == [1] * 33


class Network:
    """Names that lead to addresses, and what comes of a connection to each; refused where none is said."""

    def __init__(self, monkeypatch, **names: list[str]) -> None:
        self.names, self.ends = names, dict[str, Exception | str]()
        self.resolved, self.tried, self.stop = list[str](), list[tuple[str, int, float]](), Stop()
        monkeypatch.setattr(socket, "getaddrinfo", self._resolve)
        monkeypatch.setattr(connections._TCP, "connect_tcp", self._connect)

    def _resolve(self, host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        self.resolved.append(host)
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (address, port)) for address in self.names[host]]

    def _connect(self, address: str, port: int, seconds: float) -> str:
        self.tried.append((address, port, seconds))
        end = self.ends.get(address) or httpcore.ConnectError("refused")
        if isinstance(end, Exception):
            raise end
        return end

    def connect(self, host: str) -> object:
        return connections._connect_tcp(host, 443, Reach.PUBLIC, Watch(LIMITS, self.stop))

    def ask(self, host: str, reach: Reach = Reach.PUBLIC) -> None:
        requests = SourceRequests(ConnectionPool(lambda: pytest.fail("no TLS is needed"), LIMITS), self.stop)
        requests.get(f"http://{host}/", reach, [("Host", host)])


ADDRESSES = [f"93.184.216.{number}" for number in range(1, 7)]


def test_four_addresses_of_a_name_are_tried_each_once_until_one_answers(monkeypatch):
    """R16 bounded: the last failure is told; each has ten seconds."""
    network = Network(monkeypatch, host=["127.0.0.1", ADDRESSES[0], *ADDRESSES])
    network.ends = {ADDRESSES[2]: httpcore.ConnectTimeout(), ADDRESSES[3]: httpcore.ConnectError("last")}
    with pytest.raises(httpcore.ConnectError, match="last"):
        network.connect("host")
    assert network.tried == [(address, 443, 10.0) for address in ADDRESSES[:4]]
    network.ends = {ADDRESSES[1]: "connected"}
    assert network.connect("host") == "connected"
    network.ends = {ADDRESSES[0]: ZeroDivisionError()}
    with pytest.raises(ZeroDivisionError):
        network.connect("host")


def test_a_name_that_nobody_knows_cannot_be_reached_and_is_told_later_of_an_endpoint(monkeypatch):
    """R8, fault 28: what leads to the machine is told at once."""
    network = Network(monkeypatch, mine=["127.0.0.1"], own=["10.0.0.1"], **{"127.0.0.1": ["127.0.0.1"]})
    with pytest.raises(httpcore.ConnectError, match="cannot be resolved"):
        network.connect("nobody")
    for host in ("nobody", "own", "127.0.0.1"):
        check_leads(host, 80)
    error = refused(check_leads, "mine", 80)
    assert (error.reason, error.permanent) == ("address_not_allowed", True)
    assert "which no name may lead to" in error.message
    assert "which is not a public address" in refused(network.connect, "own").message


def test_a_name_is_resolved_once_and_of_its_addresses_those_that_are_allowed_are_tried(monkeypatch):
    """Fault 28, DNS rebinding: a second answer is never asked for, so what it says does not matter."""
    network = Network(monkeypatch, rebind=["10.0.0.1", "93.184.216.34", "127.0.0.1", "8.8.8.8"])
    with pytest.raises(httpcore.ConnectError):
        network.ask("rebind")
    assert ([address for address, *_ in network.tried], network.resolved) == (["93.184.216.34", "8.8.8.8"], ["rebind"])


@pytest.mark.parametrize("reach", [Reach.PUBLIC, Reach.NAMED])
@pytest.mark.parametrize("address", ["169.254.169.254", "127.0.0.1"])
def test_a_name_that_leads_to_the_machine_is_refused(monkeypatch, reach, address):
    """Fault 28: refused before a connection is made."""
    network = Network(monkeypatch, mine=[address])
    error = refused(network.ask, "mine", reach)
    assert (error.reason, error.permanent, network.tried) == ("address_not_allowed", True, [])


def test_who_is_stopped_tries_no_further_address(monkeypatch):
    """R12: each may take as long as a connection may, and the process is to end."""
    network = Network(monkeypatch, slow=["93.184.216.34", "8.8.8.8"])
    connect = network._connect

    def stopped(*asked: Any) -> str:
        network.stop.set()
        return connect(*asked)

    monkeypatch.setattr(connections._TCP, "connect_tcp", stopped)
    assert refused(network.ask, "slow").reason == "staging_stopped"
    assert [address for address, *_ in network.tried] == ["93.184.216.34"]


@pytest.mark.parametrize("has_tls", [True, False])
def test_tls_is_begun_with_the_name_that_was_asked_for(monkeypatch, has_tls):
    """Certificates are checked as ever, though the connection is to an address."""
    begun: list[tuple[object, ...]] = []
    stream = SimpleNamespace(start_tls=lambda *how: begun.append(how) or "encrypted")
    monkeypatch.setattr(connections, "_connect_tcp", lambda *_: stream)
    origin = httpcore.Origin(b"https", b"host", 443)
    made = connections.connect(origin, Reach.PUBLIC, "context" if has_tls else None, Watch(LIMITS, Stop()))  # type: ignore[arg-type]
    assert begun == ([("context", "host", 10.0)] if has_tls else [])
    assert (made._stream == "encrypted") is has_tls

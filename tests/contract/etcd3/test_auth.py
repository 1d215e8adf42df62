"""User and password against a real etcd, whose tokens are forgotten at each restart."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from registry.etcd3.client import Client
from registry.etcd3.errors import EtcdPermissionDenied, EtcdUnauthenticated
from registry.etcd3.ops import Range, Txn, prefix_end
from registry.etcd3.reflector import Reflector
from registry.etcd3.stream import Changed, Connected, Disconnected, Listed
from registry.tools.devstack.processes import child_environment
from tests.contract.etcd3.mirror import mirroring, put
from tests.support.etcd import PATIENCE_SECONDS, ROOT, etcdctl, find_etcdctl, switch_authentication_on
from tests.support.waiting import eventually

PASSWORD = "correct-horse"  # noqa: S105 - the canary of these tests
PREFIX = b"/ours/"
END = prefix_end(PREFIX)


@pytest.fixture
async def guarded(own_etcd):
    await switch_authentication_on(own_etcd, "lora", PASSWORD, prefix="/ours/")
    return own_etcd


@pytest.fixture
async def client(guarded):
    client = Client(guarded.options(user="lora", password=lambda: PASSWORD, call_timeout_seconds=PATIENCE_SECONDS))
    yield client
    await client.aclose()


async def restart(cluster):
    (member,) = cluster.members
    member.stop()
    member.start()
    await cluster.ready()


async def test_a_user_has_what_the_role_allows_and_nobody_else_has(guarded, client):
    """X1 secret-free: neither error nor options show the password."""
    await client.txn(put((b"/ours/a", b"1")))
    assert (await client.list_prefix(PREFIX)).kvs[0].value == b"1"
    assert len((await client.txn(Txn((), (Range(b"/ours/a"), Range(b"/ours/b"))))).responses) == 2
    assert await client.lease_keepalive(await client.lease_grant(30)) > 0
    async with client.watch(guarded.endpoints[0]) as stream:
        assert stream.server_version, "known to every user: told, or not older than who denies it"
    with pytest.raises(EtcdPermissionDenied) as caught:
        await client.txn(put((b"/theirs", b"1")))
    assert caught.value.certainly_not_applied
    for read in (client.range(Range(b"/theirs")), client.txn(Txn((), (Range(b"/ours/a"), Range(b"/theirs"))))):
        with pytest.raises(EtcdPermissionDenied):
            await read
    asked: list[str] = []

    def password() -> str:
        asked.append("battery-staple")
        return asked[-1]

    options = guarded.options(user="lora", password=password, call_timeout_seconds=PATIENCE_SECONDS)
    async with aclosing(Client(options)) as wrong, aclosing(guarded.patient()) as nobody:
        with pytest.raises(EtcdUnauthenticated) as refused:
            await wrong.txn(put((b"/ours/a", b"1")))
        with pytest.raises(EtcdUnauthenticated):
            await nobody.range(Range(PREFIX))
    shown = [str(refused.value), repr(refused.value.__cause__), repr(refused.value.__context__), repr(options)]
    assert asked, "there was a secret to be shown"
    assert not any("battery-staple" in one for one in shown)


async def test_calls_and_watches_survive_that_the_server_forgot_the_token(guarded, client, rng):
    """A refused write was certainly not applied, so it is sent again under a fresh token.

    Old servers call that "permission denied" on a watch: one fresh token is tried before it is believed.
    """
    await client.txn(put((b"/ours/a", b"1")))
    await restart(guarded)
    await client.txn(put((b"/ours/b", b"2")))
    lease = await client.lease_grant(30)
    async with mirroring(Reflector(client, PREFIX, END, rng=rng, denied_retry_seconds=600.0)) as mirror:
        await mirror.first(Connected)
        await restart(guarded)
        # Written by somebody else, so that no call of this client fetches the fresh token for the watch.
        await etcdctl(guarded, *ROOT, "put", "/ours/c", "1")
        await mirror.first(Changed)
        assert await client.lease_keepalive(lease) > 0
    assert len(mirror.of(Listed)) == 1
    assert not any(one.denied for one in mirror.of(Disconnected))
    found = (await client.list_prefix(PREFIX)).kvs
    assert [(kv.key, kv.version) for kv in found] == [(b"/ours/a", 1), (b"/ours/b", 1), (b"/ours/c", 1)]


async def test_a_watch_that_is_not_allowed_stays_visible_and_heals(guarded, client, rng):
    """Denied is told, not hidden in retries; once the role allows it, the watch comes; taken away, it is told again.

    After a reconnection the stream itself is refused; the fresh token does not help, so the refusal is believed.
    """
    reflector = Reflector(client, b"/theirs/", b"/theirs0", rng=rng, denied_retry_seconds=0.2)
    async with mirroring(reflector) as mirror:
        refusal = await mirror.first(Disconnected)
        await etcdctl(guarded, *ROOT, "role", "grant-permission", "lora", "--prefix=true", "read", "/theirs/")
        await mirror.first(Connected)
        told = len(mirror.told)
        await etcdctl(guarded, *ROOT, "role", "revoke-permission", "lora", "--prefix=true", "/theirs/")
        await restart(guarded)
        await eventually(lambda: any(isinstance(one, Disconnected) and one.denied for one in mirror.told[told:]))
    assert refusal.denied
    assert "permission denied" in refusal.message


async def test_a_rotated_password_is_asked_for_again(guarded):
    passwords = [PASSWORD]
    options = guarded.options(user="lora", password=lambda: passwords[-1], call_timeout_seconds=PATIENCE_SECONDS)
    async with aclosing(Client(options)) as client:
        await client.txn(put((b"/ours/a", b"1")))
        process = await asyncio.create_subprocess_exec(
            *(str(find_etcdctl()), "--endpoints", guarded.endpoints[0], "--command-timeout=60s", "--dial-timeout=60s"),
            *(*ROOT, "user", "passwd", "lora", "--interactive=false"),
            env={**child_environment(), "ETCDCTL_API": "3"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
        )
        await process.communicate(b"new-password\n")
        assert process.returncode == 0
        passwords.append("new-password")
        await restart(guarded)
        await client.txn(put((b"/ours/a", b"2")))

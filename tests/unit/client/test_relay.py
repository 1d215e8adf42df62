"""Calls of a fork, each of which a program of its own makes."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from unittest.mock import Mock

import grpc
import pytest

from registry.client import relay
from registry.client.relay import RelayedChannel
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import SERVICE, Hold, Refusal, served


def bytes_of(message) -> bytes:
    return message.SerializeToString()


async def test_what_a_program_hears_is_told_as_it_comes_and_it_ends_with_its_call(admin, monkeypatch):
    """X3 given-back: also where the call is given up, or the connection is closed."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # with it nothing would have to be flushed
    refused = Refusal(grpc.StatusCode.NOT_FOUND, "POOL_NOT_FOUND", "there is none")
    admin.answers["GetPool"] = [pb.Pool(name="p"), refused]
    admin.answers["WatchResidency"] = [[pb.WatchResidencyResponse(revision=7), Hold()]]
    written = Mock(wraps=json)
    monkeypatch.setattr(relay, "json", written)
    with served(admin) as address:
        channel = RelayedChannel(address, None)
        ask = channel.unary_unary(f"/{SERVICE.full_name}/GetPool", bytes_of, pb.Pool.FromString)
        assert await ask(pb.GetPoolRequest(name="p"), timeout=60.0, metadata=None) == pb.Pool(name="p")
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await ask(pb.GetPoolRequest(name="q"), timeout=60.0, metadata=(("a", "b"),))
        assert (told.value.code(), told.value.details()) == (grpc.StatusCode.NOT_FOUND, "there is none")
        assert tuple(told.value.trailing_metadata()) == refused.details()
        assert [one.args[0]["metadata"] for one in written.dumps.call_args_list] == [[], [("a", "b")]]
        parse = pb.WatchResidencyResponse.FromString
        watch = channel.unary_stream(f"/{SERVICE.full_name}/WatchResidency", bytes_of, parse)
        for is_left in (True, False):
            stream = watch(pb.WatchResidencyRequest(pool="p"), timeout=None, metadata=None)
            async with aclosing(aiter(stream)) as answers:
                assert (await asyncio.wait_for(anext(answers), 60)).revision == 7
                (process,) = channel._running
                if not is_left:
                    await channel.close()
                    assert process.returncode is not None
            assert (process.returncode is not None, channel._running) == (True, set())
        stream = watch(pb.WatchResidencyRequest(pool="p"), timeout=None, metadata=None)
        async with aclosing(aiter(stream)) as answers:
            assert (await asyncio.wait_for(anext(answers), 60)).revision == 7
            (process,) = channel._running
            process.stdin.close()  # as when its program is killed
            assert await asyncio.wait_for(process.wait(), 60) == 0
    assert admin.asked("GetPool") == [pb.GetPoolRequest(name="p"), pb.GetPoolRequest(name="q")]


@pytest.mark.parametrize("pem", [None, (b"ca", None, None), (b"ca", b"certificate", b"key")])
async def test_a_program_shows_the_certificates_and_the_token_of_its_caller(monkeypatch, pem):
    """X1 secret-free, A1 named: a call that is made for a fork is as others are."""
    called = Mock(side_effect=ZeroDivisionError)
    opened = Mock(return_value=Mock(unary_stream=Mock(return_value=called)))
    monkeypatch.setattr(relay, "open_channel", opened)
    how = {"path": "/S/M", "timeout": 7.0, "metadata": [("authorization", "Bearer t")]}
    with pytest.raises(ZeroDivisionError):
        await relay._call(json.loads(json.dumps(RelayedChannel("a:1", pem)._about | how)), b"request")
    opened.assert_called_once_with("a:1", pem)
    called.assert_called_once_with(b"request", timeout=7.0, metadata=how["metadata"])


async def test_a_program_that_cannot_be_started_is_a_service_that_is_out_of_reach(monkeypatch):
    monkeypatch.setattr(relay.sys, "executable", "/nowhere/python")
    ask = RelayedChannel("a:1", None).unary_unary("/S/M", bytes_of, pb.Pool.FromString)
    with pytest.raises(grpc.aio.AioRpcError) as told:
        await ask(pb.GetPoolRequest(), timeout=60.0, metadata=None)
    assert told.value.code() is grpc.StatusCode.UNAVAILABLE
    assert told.value.details().startswith("cannot start /nowhere/python, which makes the calls of a fork: No such")

"""The command line while etcd or the admin service is away."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from registry.tools.devstack.processes import wait_until
from tests.integration.cli.conftest import Admin, Cli, make_admin, with_pool
from tests.support.etcd import PATIENCE_SECONDS
from tests.support.waiting import eventually


@pytest.fixture
def lonely(own_etcd, tmp_path):
    """A command line whose etcd and admin service the test may stop."""
    admin = make_admin(tmp_path, own_etcd)
    admin.start()
    yield with_pool(Cli(admin, tmp_path)), own_etcd.cluster.members[0]
    admin.program.kill()


def away(cli: Cli) -> bool:
    return cli("get", "pools", "--timeout", "1").code == 6


def test_a_change_waits_for_etcd_and_is_made_once(lonely):
    """W3 idempotent, W8 no-false-fail: the client repeats with one request id until the outcome is known."""
    cli, member = lonely
    member.kill()
    asyncio.run(eventually(lambda: away(cli)))
    with cli.start("-o", "json", "apply", "-f", cli.manifest("a"), "--timeout", "200") as waiting:
        assert cli("get", "pools", "--timeout", "1").code == 6
        assert waiting.poll() is None
        member.start()
        out, err = waiting.communicate(timeout=200)
    assert (waiting.returncode, err) == (0, "")
    told = json.loads(out)
    [adapter] = cli.json("get", "adapters")["items"]
    assert (adapter["generation"], adapter["etag"]) == (1, str(told["revision"]))
    assert [one["generation"] for one in cli.json("history", "a")["items"]] == [1]


def test_watching_goes_on_after_the_admin_service_came_back(cli, admin: Admin):
    """R2 replay-equal, seen from outside: no change is lost or told twice."""
    with cli.start("-o", "json", "get", "adapters", "-w", "--pool", "dev") as watching:
        assert watching.stdout is not None
        cli.json("apply", "-f", cli.manifest("a"))
        first = json.loads(watching.stdout.readline())
        admin.program.kill()
        admin.start()
        cli.json("apply", "-f", cli.manifest("b"))
        cli.json("delete", "adapter", "a")
        rest = [json.loads(watching.stdout.readline()) for _ in range(2)]
    assert (first["change"], first["item"]["name"]) == ("put", "a")
    assert [(one["change"], one.get("name") or one["item"]["name"]) for one in rest] == [("put", "b"), ("deleted", "a")]


def test_without_etcd_a_command_ends_once_the_admin_service_knows(lonely):
    """R18: within about two seconds instead of all of its time. The doctor blames etcd alone."""
    cli, member = lonely
    member.kill()

    async def is_away() -> bool:
        return not await cli.admin.is_ready()

    asyncio.run(eventually(is_away))
    change, hurried = ("apply", "-f", cli.manifest("a")), replace(cli, waits=False)
    for command in (("get", "pools"), change):
        ran = hurried(*command)
        assert (ran.code, "error: ETCD_UNAVAILABLE: the admin service at" in ran.err) == (6, True)
        assert "answers, but reaches no majority of etcd" in ran.err

    def is_blamed() -> bool:
        """An admin service that takes longer than those two seconds to say so is not there itself."""
        ran = cli("-o", "json", "doctor", "--timeout", "2", "--etcd", member.endpoint)
        found = {(one["part"], one["reason"]) for one in ran.json["findings"]}
        assert (ran.code, ("etcd", "member_down") in found) == (6, True)
        return ("etcd", "unreachable") in found and "admin" not in {part for part, _ in found}

    assert wait_until(is_blamed, PATIENCE_SECONDS)  # the doctor has an event loop of its own

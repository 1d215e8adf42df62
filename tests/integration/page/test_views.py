"""The page in a real browser: each view while things fail, by keys and by clicks, on a phone and in the dark."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime

import pytest

from registry.etcd3.ops import Put, Txn
from registry.model.status import Failed, LastKnown, Pending, RememberedReplica, RememberedReplicas
from registry.runtime.clock import rfc3339
from registry.v1 import registry_pb2 as pb
from tests.integration.admin.test_access import guarded, token
from tests.integration.page.conftest import NAMES
from tests.support.admin import admin_with_pool, change_set, put
from tests.support.browser import IS_THERE, LACKING, ROOT
from tests.support.tls import Authority

pytestmark = pytest.mark.skipif(not IS_THERE, reason=LACKING)
PICTURES = ROOT / "docs" / "pictures" if os.environ.get("PICTURES") else None
VIEWS = {
    "fleet": ("#/fleet", "rank_too_high"),
    "adapter": ("#/adapter/legal", "created"),
    "replica": ("#/replica/replica-3", "rank 64 > 16"),
    "now": ("#/now", "12 of 13 would go"),
}


async def test_each_view_tells_what_fails_and_axe_finds_nothing_serious(troubled, page, tmp_path):
    """In the light and in the dark, on a desk and on a phone; nothing that somebody wrote is run or cut off."""
    for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
        await page.do("renew", viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce")
        for name, (place, wanted) in VIEWS.items():
            await page.do("goto", url=f"{troubled.admin.http}/{place}")
            await page.sees("legal" if (name, width) == ("fleet", 390) else wanted)
            await page.sees("replica-8" if name in {"fleet", "now"} else "replica-3")
            assert await page.do("axe") == [], (name, scheme, width)
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await page.do("eval", script=wide) == 0, f"{name} is wider than {width}"
            folder = PICTURES if PICTURES and (scheme, width) == ("light", 1280) else tmp_path
            folder.mkdir(exist_ok=True)
            await page.do("shoot", path=str(folder / f"page-{name}.png"))
    assert await page.do("eval", script="document.querySelectorAll('img, [onerror]').length") == 0
    assert await page.do("complaints") == []


async def test_why_an_adapter_is_missing_on_two_replicas_takes_two_clicks(troubled, page):
    await page.do("goto", url=f"{troubled.admin.http}/")
    await page.sees("2 × rank_too_high")
    await page.do("click", selector="text=legal")
    await page.sees("Old → new")
    assert "replica-3 replica-5" in await page.text()
    await page.do("click", selector="text=replica-3")
    await page.sees("rank 64 > 16")
    await page.sees("engine restarted")


async def test_keys_and_words_find_what_is_looked_for(troubled, page):
    await page.do("goto", url=f"{troubled.admin.http}/")
    await page.sees("team-2/support-8")
    await page.do("press", key="/")
    await page.do("fill", selector="#search", text="team=t1 support-4")
    await page.sees("1 Healthy")
    names = "[...document.querySelectorAll('.matrix th a')].map((one) => one.textContent)"
    assert await page.do("eval", script=names) == ["team-1/support-4"]
    await page.do("press", key="Escape")
    await page.sees("9 Healthy")
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        await page.do("press", key=key)
    await page.sees("Where")
    assert await page.do("eval", script="location.hash") == "#/adapter/team-0/support-0?pool=p"
    await page.do("press", key="n")
    await page.sees("Held removals")


async def test_a_canary_is_followed_to_its_halt(troubled, page):
    """R9: without loading anything again."""
    canary = pb.Strategy(canary_replicas="1", promote="auto")
    await troubled.apply(put("legal", "file:///a/v2", labels={"team": "law"}, strategy=canary))
    await page.do("goto", url=f"{troubled.admin.http}/#/adapter/legal")
    await page.sees("canaries take generation 2, all others serve 1")
    await page.sees("file:///a/v1 → file:///a/v2")
    failed = Failed(name="legal", generation=2, reason="digest_mismatch", message="m", attempts=1, retry_at=None)
    for name in list(troubled.said):
        await troubled.says(name, failed=[failed], failed_count=1)
    await page.sees("digest_mismatch")
    await troubled.halt("legal", "1 of 1 canaries refuse it: replica-2 digest_mismatch")
    await page.sees("Halted")
    await page.sees("halted: 1 of 1 canaries refuse it: replica-2 digest_mismatch")


async def test_what_changes_is_shown_while_the_page_is_open(troubled, page):
    await page.do("goto", url=f"{troubled.admin.http}/#/now")
    await page.sees("replica-6 of p is not ready")
    await troubled.says("replica-6")
    await page.do("wait", script="!document.querySelector('main').innerText.includes('replica-6')")
    await troubled.says("replica-1", pending=[Pending(name="team-0/support-0", generation=1, reason="staging")])
    await page.sees("team-0/support-0")
    await troubled.replicas.gone("replica-2")
    await page.do("press", key="f")
    await page.do("wait", script="!document.querySelector('main').innerText.includes('replica-2')")
    known = LastKnown(engine_url="http://replica-2:8000", host="rack-7", engine="sim 0.26.1", observed_revision=7)
    lost = RememberedReplica(last_seen=rfc3339(datetime.now(UTC)), last_known=known)
    expected = RememberedReplicas(members={"replica-2": lost}).to_bytes()
    await troubled.client.txn(Txn((), (Put(troubled.keys.members("p"), expected),)))
    await page.do("goto", url=f"{troubled.admin.http}/#/replica/replica-2?pool=p")
    await page.sees("It is expected and does not live")
    await page.sees("rack-7")


async def test_replicas_that_left_while_the_service_was_away_are_not_shown_any_more(troubled, page, monkeypatch):
    """R9: also where none is left, of which nothing can be told."""
    await page.do("goto", url=f"{troubled.admin.http}/#/fleet")
    await page.sees("replica-8 leaving")
    await page.do("eval", script="() => { window.kept = fetch; window.fetch = async () => { throw Error('away'); }; }")
    with monkeypatch.context() as patched:
        patched.setattr("registry.admin.page.stream.AGE_SECONDS", 0.0)
        await page.sees("The service does not answer")
    for name in NAMES:
        await troubled.replicas.gone(name)
    await page.do("eval", script="() => { window.fetch = window.kept; }")
    await page.sees("replica-1 gone")
    for false in ("replica-8 leaving", "The service does not answer"):
        await page.do("wait", script=f"!document.querySelector('main').innerText.includes('{false}')")


SAYS_ALL_IS_WELL = ("serve what they should", "No removal is held", "No replica leaves", "live and are ready")
SEEN_BY = """async () => {
  const [{ nowView }, { Fleet }] = await Promise.all([import("/page/now.js"), import("/page/stream.js")]);
  const fleet = new Fleet(), view = nowView({ fleet }), told = [];
  const look = () => { view.update(); told.push(view.root.textContent); };
  look();
  fleet.take("health", { ready: true, reason: "", pools: ["p"], principal: "a" });
  look();
  const row = { name: "r", ready: true, engine: "e" };
  for (const rows of [null, [row], [{ ...row, held: "" }]]) {
    if (rows) fleet.take("replicas", { pool: "p", snapshot: true, rows, gone: [] });
    fleet.take("pool", { name: "p", shows_replicas: !!rows, absent: [] });
    look();
  }
  fleet.take("gone", { pools: ["p"] });
  look();
  fleet.take("health", { ready: false, reason: "etcd", pools: [], principal: "a" });
  look();
  return told;
}"""


async def test_nothing_is_said_to_be_well_that_is_not_known_or_not_to_be_seen(troubled, page):
    """R9, A2: before the fleet is told, and to whom replicas or their sentences are not."""
    await page.do("goto", url=f"{troubled.admin.http}/#/now")
    told = await page.do("eval", script=SEEN_BY)
    said = [[text in one for text in SAYS_ALL_IS_WELL] for one in told]
    no, yes = False, True
    seen = [[yes, no, no, no], [yes, no, yes, yes], [yes] * 4, [yes] * 4]
    assert said == [[no] * 4, [no] * 4, *seen, [no] * 4]
    assert ["Loading" in one for one in told] == [yes, yes, no, no, no, no, yes]


async def test_times_go_on_while_nothing_is_heard(troubled, page):
    await page.do("goto", url=f"{troubled.admin.http}/#/replica/replica-1")
    await page.sees("s ago")
    times = "[...document.querySelectorAll('time')].map((one) => one.textContent).join()"
    before = await page.do("eval", script=times)
    await page.do("wait", script=f"{times} !== {json.dumps(before)}")
    assert "s ago" in await page.text()


async def test_without_a_script_it_is_a_table(troubled, page):
    await page.do("renew", java_script_enabled=False)
    await page.do("goto", url=f"{troubled.admin.http}/")
    await page.do("shown", selector="text=2 × rank_too_high")
    await page.do("shown", selector="text=<img src=x onerror=alert(1)>")


async def test_a_token_is_asked_for_and_asked_for_again_when_it_ends(page, etcd, tmp_path, monkeypatch):
    """A1 named, A2 deny-by-default: nothing is shown before, and nothing after."""
    monkeypatch.setattr("registry.access.tokens.LEEWAY_SECONDS", 0)
    authority = Authority(tmp_path / "authority", "ours")
    async with guarded(etcd, tmp_path, authority) as (ports, _), admin_with_pool(etcd.endpoints, etcd.prefix) as free:
        await free.stub.ApplyAdapters(change_set(put("acme/a"), put("other/b")))
        await page.do("goto", url=f"http://127.0.0.1:{ports.http_port}/#/adapter/acme/a")
        await page.sees("Token")
        assert await page.do("axe") == []
        await page.do("fill", selector="#token", text="nonsense")
        await page.do("press", key="Enter")
        await page.sees("the token is not believed")
        await page.do("fill", selector="#token", text=token("ml-acme", 25))
        await page.do("press", key="Enter")
        await page.sees("acme/a")
        await page.sees("ci:job", "#who")
        await page.do("press", key="f")
        await page.sees("1 Progressing")
        assert "other" not in await page.text()
        await page.sees("expired")
        assert await page.do("eval", script="!!document.querySelector('#token')") is True
        assert "acme" not in await page.text()
        assert await page.do("eval", script="sessionStorage.length + document.cookie.length") == 0
        await page.do("fill", selector="#token", text=token("ml-acme"))
        await page.do("press", key="Enter")
        await page.sees("1 Progressing")
        await page.do("click", selector="text=Sign out")
        await page.sees("Token")
        assert "acme" not in await page.text()

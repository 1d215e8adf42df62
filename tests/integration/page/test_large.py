"""The page with a thousand adapters on a hundred replicas, and twenty changes a second."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence

import pytest

from registry.model.keys import Keys
from registry.model.status import Failed
from tests.support.admin import admin_with_pool, change_set, put
from tests.support.browser import IS_THERE, LACKING
from tests.support.residency_world import Replicas

pytestmark = [
    pytest.mark.skipif(not IS_THERE, reason=LACKING),
    pytest.mark.skipif(not os.environ.get("PICTURES"), reason="make page"),
]
ADAPTERS, REPLICAS, CHANGES, CHANGED, PER_SECOND = 1000, 100, 200, 50, 20
MOST_SECONDS = 1.0
# Each name and generation that was ever drawn, as far as a row was in sight.
WATCH = """(() => {
  window.drawn = new Set();
  const look = () => {
    for (const row of document.querySelectorAll(".matrix tbody tr:not(.space)"))
      drawn.add(`${row.querySelector("a").textContent} ${row.querySelector(".cells").getAttribute("aria-label")}`);
  };
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributes: true });
})()"""
DRAWN = "[...drawn].map((one) => one.replace(/ .* generation /, ' '))"


def names(count: int, form: str) -> Sequence[str]:
    return [form.format(number) for number in range(count)]


async def test_a_thousand_by_a_hundred_is_drawn_within_a_second_and_no_change_is_lost(page, etcd, etcd_client):
    """Drawn: from the request to rows, cells and counts of all; then each generation of what is in sight is shown.

    Twenty changes a second are of fifty adapters in turn. Ten of these are in sight, and each generation of theirs is;
    of the others that which they end with.
    """
    adapters, replicas = names(ADAPTERS, "team-{0:03}/adapter"), names(REPLICAS, "replica-{0:03}")
    async with admin_with_pool(etcd.endpoints, etcd.prefix) as admin:
        for start in range(0, ADAPTERS, 40):
            changes = map(put, adapters[start : start + 40])
            revision = (await admin.stub.ApplyAdapters(change_set(*changes))).revision
        said = Replicas(etcd_client, Keys(etcd.prefix))
        for name in replicas:
            await said.alive(name)
        for number, name in enumerate(replicas):
            failed = [Failed(name=adapters[number], generation=1, reason="BAD", message="m", attempts=1, retry_at=None)]
            await said.says(name, revision, failed=failed, failed_count=1)
        seconds = []
        for _ in range(3):
            await page.do("goto", url="about:blank")
            await page.do("goto", url=f"{admin.http}/")
            await page.sees("100 Degraded")
            await page.sees("900 Healthy")
            seconds.append(await page.do("eval", script="performance.now() / 1000"))
        cells = await page.do("eval", script="document.querySelectorAll('.matrix tbody tr .cells')[0].children.length")
        elements = await page.do("eval", script="document.querySelectorAll('*').length")
        print(f"drawn after {', '.join(f'{one:.2f}' for one in seconds)} s; {cells} cells a row, {elements} elements")
        assert cells == REPLICAS
        assert elements < 10_000, "only what is in sight is there"
        assert min(seconds) < MOST_SECONDS
        await page.do("fill", selector="#search", text="team-00")
        await page.sees("10 Degraded")
        await page.do("eval", script=WATCH)
        for number in range(CHANGES):
            await admin.stub.ApplyAdapters(change_set(put(adapters[number % CHANGED], f"file:///v{number}")))
            await asyncio.sleep(1 / PER_SECOND)
        newest = 1 + CHANGES // CHANGED
        for part in range(CHANGED // 10):
            await page.do("fill", selector="#search", text=f"team-{part:02}")
            wanted = [f"{name} {newest}" for name in adapters[10 * part : 10 * part + 10]]
            await page.do("wait", script=f"{json.dumps(wanted)}.every((one) => ({DRAWN}).includes(one))")
        lost = {f"{name} {number}" for name in adapters[:10] for number in range(2, newest + 1)}
        lost -= set(await page.do("eval", script=DRAWN))
        assert not lost, "each of these was newest for seconds"

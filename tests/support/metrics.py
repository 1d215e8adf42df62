"""What a page of metrics says."""

from __future__ import annotations

from collections import defaultdict

from tests.support.http_client import http_client


async def read_metrics(url: str) -> dict[str, float]:
    """Values as ``name{label="value"}``, and of each name those of all labels added up."""
    async with http_client(base_url=url, timeout=60) as client:
        page = (await client.get("/metrics")).text
    found: defaultdict[str, float] = defaultdict(float)
    for line in page.splitlines():
        if not line.startswith("#"):
            sample, _, value = line.rpartition(" ")
            for name in {sample, sample.partition("{")[0]}:
                found[name] += float(value)
    return dict(found)

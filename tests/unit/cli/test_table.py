"""Tables as people see them at 80, 100 and 120 columns: no cell is folded, and names are whole."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from registry.cli.views.columns import ADAPTERS, GENERATIONS, POOL_ROWS, REPLICAS
from registry.cli.views.differences import GenerationRow
from registry.cli.views.events import EVENTS, change_event
from registry.cli.views.output import OutputView, Paper, table_lines, width_of
from registry.cli.views.replica_view import replica_view
from registry.cli.views.residency_view import PoolRow, PoolStatus
from registry.cli.views.top import REPLICAS as TOP_REPLICAS
from registry.cli.views.top import replica_row
from registry.residency.health import AdapterRow
from registry.residency.standing import StandingCounts
from registry.v1 import registry_pb2 as pb

URL = "http://engine-7.qwen-prod.svc.cluster.local:8000"
REQUEST, AT = "2874d30e-b354-4d17-a2ca-879bbb02c74c", "2026-11-27T17:36:36.031Z"
CHANGED = "source.digest: - → sha256:4f4f4f4f4f4f…; source.uri: s3://adapters/"
WHY = "placement.replicas: 6 → 7 (ApplyAdapters)"
NOTE = "the store of this replica is 96 % full, so nothing is staged"
DIGEST = "sha256:" + "4f" * 32


def picture(view: OutputView[Any], items: Sequence[Any], paper: Paper, *, wide: bool = False) -> list[str]:
    columns = view.all_columns if wide else view.columns
    return table_lines(tuple(columns), [[cell(one) for cell in columns.values()] for one in items], paper)


def replica(name: str, **status: Any) -> Any:
    engine = {"kind": "vllm", "version": "0.32.0", "url": URL}
    told = {"ready": True, "stale": False, "observed_revision": 48213, "engine": engine, **status}
    return replica_view(pb.Replica(name=name, pool="qwen-prod", status_json=json.dumps(told)))


def adapter(name: str, reason: str, count: int) -> AdapterRow:
    record = pb.Adapter(name=name, pool="qwen-prod", generation=12, spec=pb.AdapterSpec(load="eager"))
    counts = [pb.ResidenceCount(replicas=8 - count, state=pb.RolloutReplica.SERVING)]
    counts += [pb.ResidenceCount(replicas=count, state=pb.RolloutReplica.FAILED, reason=reason)] if count else []
    return AdapterRow(record, pb.AdapterResidency(name=name, generation=12, counts=counts))


OLD, NEW = (
    pb.Source(uri="s3://adapters/acme/sql/step-1"),
    pb.Source(uri="s3://adapters/acme/sql/step-2", digest=DIGEST),
)
BY = {"updated_at": "2026-11-27T17:36:36Z", "updated_by": "team:ann", "request_id": REQUEST}
EVENT = {"at": AT, "principal": "team:ann", "request_id": REQUEST, "method": "ApplyAdapters", "kind": "adapter"}
EVENT |= {"name": "acme/sql", "action": "updated", "generation": 2, "fields": ["placement"]}
REPLICAS_CHANGED = pb.ChangedValue(path="placement.replicas", before_json="6", after_json="7")
ENGINE = {"running": 12, "waiting": 3, "requests": 48213, "prompt_tokens": 9, "generation_tokens": 9}
TOP = {"replica": "qwen-prod-7c9d", "engine": ENGINE, "calls": {"load": {"count": 13, "seconds": 2.6}}}
SEEN = {
    "replicas": (
        REPLICAS,
        [
            replica("r1", served={"count": 13}, note=NOTE),
            replica("r2", ready=False, degraded="the engine refuses everything since 14:02:11"),
        ],
    ),
    "adapters": (ADAPTERS, [adapter("acme/sql", "", 0), adapter("acme/a-name-that-is-long", "over_capacity", 2)]),
    "pools": (
        POOL_ROWS,
        [
            PoolRow(
                pb.Pool(name="qwen-prod", base_models=["Qwen/Qwen2.5-7B-Instruct", "qwen", "default-chat-model"]),
                PoolStatus("Degraded", 7, 8, 499, 501),
            )
        ],
    ),
    "history": (
        GENERATIONS,
        [
            GenerationRow(
                pb.Adapter(generation=2, spec=pb.AdapterSpec(source=NEW), **BY),
                pb.Adapter(generation=1, spec=pb.AdapterSpec(source=OLD)),
            )
        ],
    ),
    "events": (EVENTS, [change_event(pb.RecordedChange(**EVENT, values=[REPLICAS_CHANGED]))]),
    "top": (TOP_REPLICAS, [replica_row(TOP, {"qwen-prod-7c9d": StandingCounts(16, 13, 0, 2, 1, 0)})]),
}
GOLDEN = {
    ("history", 80): [
        "GENERATION  FOR  UPDATED               BY        REQUEST                               CHANGED",
        f"2           all  2026-11-27T17:36:36Z  team:ann  {REQUEST}  {CHANGED}acme/…",
    ],
    ("history", 100): [
        "GENERATION  FOR  UPDATED               BY        REQUEST                               CHANGED",
        f"2           all  2026-11-27T17:36:36Z  team:ann  {REQUEST}  {CHANGED}acme/sql/step-1 → s3://adapters/acme/sql/step…",
    ],
    ("history", 120): [
        "GENERATION  FOR  UPDATED               BY        REQUEST                               CHANGED",
        f"2           all  2026-11-27T17:36:36Z  team:ann  {REQUEST}  {CHANGED}acme/sql/step-1 → s3://adapters/acme/sql/step-2",
    ],
    ("events", 80): [
        f"TIME                      EVENT    KIND     NAME      REPLICA  GENERATION  BY        {'REQUEST':<36}  WHY",
        f"{AT}  updated  adapter  acme/sql  -        2           team:ann  {REQUEST}  {WHY}",
    ],
    ("top", 80): [
        "REPLICA         SERVED  LOADED  RUNNING  WAITING  REQUESTS  PROMPT TOKENS  NEW TOKENS  LOADS  SWAPS",
        "qwen-prod-7c9d  13/16   0       12       3        48213     9              9           13     0",
    ],
    ("replicas", 80): [
        "NAME  POOL       READY  SERVED  PENDING  FAILED  URL                                               NOTE",
        f"r1    qwen-prod  yes    13      0        0       {URL}  {NOTE}",
        f"r2    qwen-prod  no     -       0        0       {URL}  the engine refuses everything since 14:02:11",
    ],
    ("replicas", 120): [
        "NAME  POOL       READY  SERVED  PENDING  FAILED  URL                                               NOTE",
        f"r1    qwen-prod  yes    13      0        0       {URL}  the store of this re…",
        f"r2    qwen-prod  no     -       0        0       {URL}  the engine refuses e…",
    ],
    ("adapters", 80): [
        "NAME                      POOL       STATE     SERVING  GENERATION  LOAD   AGE  REASONS",
        "acme/sql                  qwen-prod  Healthy   8/8      12          eager  -    -",
        "acme/a-name-that-is-long  qwen-prod  Degraded  6/8      12          eager  -    2 × over_capacity",
    ],
    ("pools", 80): [
        "NAME       STATE     REPLICAS  ADAPTERS  BASE MODELS                    EXPECTED",
        "qwen-prod  Degraded  7/8       499/501   Qwen/Qwen2.5-7B-Instruct, qw…  -",
    ],
    ("pools", 120): [
        "NAME       STATE     REPLICAS  ADAPTERS  BASE MODELS                                         EXPECTED",
        "qwen-prod  Degraded  7/8       499/501   Qwen/Qwen2.5-7B-Instruct, qwen, default-chat-model  -",
    ],
}
# Rows that are whole, or run on, are the same on a wider terminal.
GOLDEN |= {(what, width): GOLDEN[what, 80] for what in ("events", "top", "adapters") for width in (100, 120)}
GOLDEN["replicas", 100] = GOLDEN["replicas", 80]


@pytest.mark.parametrize(("what", "width"), GOLDEN)
def test_a_table_is_as_it_was_looked_at(what, width):
    assert picture(*SEEN[what], Paper(width)) == GOLDEN[what, width]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("what", SEEN)
def test_names_addresses_and_digests_are_whole_and_a_row_is_a_line(what, width, wide):
    """What is cut says so, and only where the row would be longer than a line."""
    view, items = SEEN[what]
    lines, whole = picture(view, items, Paper(width), wide=wide), picture(view, items, Paper(), wide=wide)
    assert len(lines) == len(items) + 1
    longest = max(map(width_of, whole))
    for line, full in zip(lines, whole, strict=True):
        words = [word for word in re.split(r"\s{2,}", full) if re.search(r"http|sha256|s3:|/", word)]
        assert all(word in line for word in words if not re.search(", |×|→", word))
        assert ("…" in line) <= (longest > width)


def test_states_have_colours_and_heads_are_bold_where_styles_are_shown():
    head, first, second = picture(*SEEN["adapters"], Paper(100, has_styles=True))
    assert head.startswith("\x1b[1mNAME")
    assert "\x1b[32mHealthy\x1b[0m " in first
    assert "\x1b[31mDegraded\x1b[0m" in second
    plain = [re.sub(r"\x1b\[\d*m", "", line) for line in (head, first, second)]
    assert plain == picture(*SEEN["adapters"], Paper(100))


def test_the_widest_words_are_cut_first_and_letters_of_two_columns_count_twice():
    titles, row = ("NAME", "REASON", "NOTE"), ("n", "r" * 20, "語" * 30)
    head, line = table_lines(titles, [row], Paper(50))
    assert (width_of(line) <= 50, line.split()) == (True, ["n", "r" * 20, "語" * 10 + "…"])
    assert head.index("NOTE") == line.index("語")
    assert table_lines(titles, [row], Paper(32))[1].split() == ["n", "r" * 11 + "…", "語" * 5 + "…"]
    lines = table_lines(titles, [row], Paper(20))
    assert (width_of(lines[1]) <= 2 * 20, lines[1].split()) == (True, ["n", "r" * 15 + "…", "語" * 7 + "…"]), (
        "what runs on fills its last line"
    )
    assert table_lines(("A", "B"), [("語" * 4, "b" * 4)], Paper(7, is_screen=True)) == ["A", "語語語…"]
    screen = table_lines(("NOTE", "NAME"), [("w" * 30, "n" * 20)], Paper(24, is_screen=True))
    assert screen[1].split() == ["w" * 11 + "…", "n" * 9 + "…"], "words say something still; what is behind them goes"

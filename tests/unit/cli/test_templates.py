"""-o custom-columns and -o jsonpath."""

from __future__ import annotations

import grpc
import pytest

from registry.cli.failure import CliError
from registry.cli.views.template import columns_of, parts_of, written
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import Refusal
from tests.unit.cli.test_read import SERVED, SQL, counted, ways

ITEMS = {"items": [{"name": "a", "labels": {"x/y": "1"}, "n": [1, 2]}, {"name": "b\x1b", "labels": {}, "n": None}]}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.items[*].name}", r"a b\x1b"),
        (".items[0].name", "a"),
        ("items[-1].name", r"b\x1b"),
        ("$.items[0].n[*]", "1 2"),
        ("{.items[0].labels['x/y']}{.items[0].labels.x/y}", "11"),
        ("{.items[0].labels}", '{"x/y": "1"}'),
        ("{.items[0].*}", 'a {"x/y": "1"} [1, 2]'),
        ("{.items[1].n}", "<none>"),
        ("{.items[7].name}{.nothing}{.items.name}{.items[0].name[0]}", ""),
        ('all: {range .items[*]}{.name}{"\\n"}{range @.n[*]}<{$}>{end}{end}.', "all: a\n<1><2>b\\x1b\n."),
        ("{.items[0].name}{'|'}", "a|"),
    ],
)
def test_a_template_is_written(template, text):
    assert written(parts_of(template), ITEMS) == text


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("", "it is empty"),
        ("{.a", "a brace is not closed"),
        ("{.a}}", "a brace is not closed"),
        ("{range .a}{.b}", "has no {end}"),
        ("{end}", "without {range"),
        ('{"\\x"}', "is no text in quotes"),
        ("{.a..b}", "is no path"),
        ("{.a[?(@.b)]}", "is no path"),
    ],
)
def test_a_wrong_template_is_refused(template, told):
    with pytest.raises(CliError) as refused:
        parts_of(template)
    assert told in refused.value.failure.message


@pytest.mark.parametrize("output", ["jsonpath={.a", "custom-columns=NAME", "jsonpath", "json=x", "neither"])
def test_a_form_that_cannot_be_written_is_refused_before_anybody_is_asked(cli, admin, output):
    ran = cli("get", "adapters", "-o", output)
    assert (ran.code, admin.requests) == (2, [])


@pytest.mark.parametrize("template", ["", "NAME", "NAME:", ":.name", "NAME:.name,", "NAME:.a b"])
def test_wrong_columns_are_refused(template):
    with pytest.raises(CliError) as refused:
        columns_of(template)
    assert "-o custom-columns" in refused.value.failure.message


def test_columns_of_what_json_has(cli, admin):
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[SQL])]
    admin.answers["WatchResidency"] = [counted("sql", ways(SERVED, 2))]
    columns = "custom-columns=NAME:.name,STATE:{.status.state},LABELS:.spec.labels.team,ALL:.status.reasons"
    header, row = cli("get", "adapters", "-o", columns).out.splitlines()
    assert (header.split(), row.split()) == (["NAME", "STATE", "LABELS", "ALL"], ["sql", "Healthy", "<none>", "{}"])
    admin.answers["GetAdapter"] = [SQL]
    assert cli("get", "adapter", "sql", "-o", columns).out.splitlines()[1] == row
    assert cli("-o", "jsonpath={.name}", "get", "adapter", "sql").out == "sql\n"
    assert cli("-o", 'jsonpath={range .items[*]}{.name}{"\\n"}{end}', "get", "adapters").out == "sql\n"
    assert cli("-o", "jsonpath={.nothing}", "get", "adapters").out == ""


def test_a_watch_in_columns(cli, admin):
    one, none = pb.ListReplicasResponse(replicas=[pb.Replica(name="r1", pool="dev")]), pb.ListReplicasResponse()
    end = Refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "enough")
    admin.answers["ListReplicas"] = [one, none, end]
    ran = cli("get", "replicas", "-w", "-o", "custom-columns=NAME:.name,POOL:.pool")
    assert ran.out == "NAME  POOL\nr1  dev\nr1  deleted\n"
    admin.answers["ListReplicas"] = [one, none, end]
    assert cli("get", "replicas", "-w", "-o", "jsonpath={.name}").out == "r1\n"

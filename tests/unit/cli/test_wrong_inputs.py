"""Command lines that the program itself refuses: each is told in one line with what to do, and nothing is sent."""

from __future__ import annotations

import shlex

import pytest

from registry.v1 import registry_pb2 as pb
from tests.support.wrong_inputs import PAGE, page, table

FILES, INPUTS = table()
SQL = pb.Adapter(name="sql", pool="dev", generation=1, etag="7", spec=pb.AdapterSpec(labels={"team": "bi"}))
# More of them, with some of what is said.
MORE = {
    "pool": "name a command; see loraplane pool --help",
    "get adapters \udcff": "not text in UTF-8",
    "nonsense": "No such command 'nonsense'",
    "get pools -l a=b": "nothing else has labels",
    "get pools -oj": "-o j: choose one of table",
    "get adapters --field-selector name=a,": "--field-selector",
    "get adapters --field-selector =a": "--field-selector",
    "get adapters -w a b": "--watch shows each change as it comes",
    "get adapters -w -l team": "-l team: write KEY=VALUE",
    "get adapters -w --field-selector size=1": "--field-selector size=…: choose one of NAME",
    "get adapters -l a=1,a=2": "-l",
    "history a -o manifest": "-o manifest",
    "apply -f good.yaml -o manifest": "-o manifest",
    "export -o manifest": "-o manifest goes with get",
    "describe pool p -o custom-columns=A:.a": "-o custom-columns goes with get",
    "explain adapter.spec.placment": "'placment' is no field; did you mean placement?",
    "explain adapter.spec.load.x": "there is nothing below it",
    "set sql --label team=bi": "say what to set",
    "set sql --label none-": "say what to set",
    "set sql --on zone": "--on zone: write KEY=VALUE",
    "rollout": "Missing",
    "rollout halt sql": "",
    "rollout promote sql law": "",
    "rollout sql --etag 3": "--generation and --etag are for promote and abort",
    "apply -f good.yaml -l team=x": "--prune and -l KEY=VALUE go together",
    "delete": "",
    "delete a -f good.yaml": "",
    "delete -f good.yaml --etag 12": "",
    "delete -f good.yaml --pool other": "",
    "delete a -l team=x": "",
    "delete -l =x": "-l =x: write KEY=VALUE",
    "delete -l team=x,team=y": "",
    "delete a b --etag 5": "",
    "delete tenants acme": "",
    "retry pool sql": "",
    "retry sql sql": "",
    "top --sidecar r1": "--sidecar r1: write HOST:PORT",
    **{
        f"pool update dev --expect-labels {word}": "write KEY=VALUE:N, or KEY=VALUE,KEY=VALUE:N"
        for word in "zone:3 3 =b:3 zone=b:-1 zone=b:1000000000 zone=a,b:1".split()
    },
    **dict.fromkeys((f"add a --source s3://b/a --label {word}" for word in ("a", "=1", "=")), ": write KEY=VALUE"),
    **{
        f"events --sidecar {where}": f"--sidecar {where.replace(chr(92), '')}: write HOST:PORT"
        for where in ("r1", "r1:", ":1", "r1:0", "r1:65536", "a\\ b:1", "::1:7602", "r1:123456", "ftp://r1:1")
    },
    **{f"events --since={span}": f"--since {span}: write a number" for span in (*"s1", "", "1w", "1.5h", "1234567s")},
    "audit --since tomorrow": "--since tomorrow: write a number",
    "get adapters -l a=1,": "-l : write KEY=VALUE",
    "set sql --ttl=soon": "--ttl soon: write a number and s, m, h or d, such as 30m; or none",
    **{
        f"set sql --keep={word}": f"--keep {word}: write a whole number of generations, such as 3; or none"
        for word in ("-1", "two", "9" * 19, "\u0663")
    },
    "set sql --max-replicas 8": "that follows requests needs --replicas and --per-replica, too",
    "set sql --per-replica 8 --replicas 2": "that follows requests needs --max-replicas, too",
    "set sql --max-replicas 8 --per-replica 5 --replicas 0": "that follows requests needs --replicas, too",
    "publish a there --wait": "go with --name",
    "publish a there --request-id mine": "go with --name",
    "check a --base-model b --name acme/sql": "go together",
    "check a --base-model b --signature-policy p": "go together",
    "export a --watch f": "--watch: name one format",
    "export litellm -l team=x": "--selector",
    "export litellm --watch none/f": "cannot be written: No such file or directory",
    "doctor --watch --repair": "",
    "doctor --manifests - --watch": "leave out --watch and --repair",
    "doctor --manifests - --repair": "leave out --watch and --repair",
    "etcd-access apply --etcd 10.0.0.1:2379 --password-dir d": "unencrypted",
    "etcd-access plan --etcd http://a:1": "HOST:PORT",
    "etcd-access plan --etcd 127.0.0.1:1 --prefix p": "prefix",
    "etcd-access check --etcd 127.0.0.1:1 --etcd-user root": "--etcd-password-file",
    "etcd-access plan --etcd 127.0.0.1:1 --replica r1": "POOL/NAME",
}
WRONG = [(one.line, one.exit, one.message) for one in INPUTS if one.is_ours]


@pytest.mark.parametrize(("line", "code", "message"), [*WRONG, *((line, 2, told) for line, told in MORE.items())])
def test_a_wrong_input_is_told_with_its_remedy(cli, admin, monkeypatch, tmp_path, line, code, message):
    """W4 etag: a condition that cannot be kept is refused, not forgotten; what is not said whole removes nothing."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("LORAPLANE_CONFIG", str(tmp_path / "contexts.json"))
    admin.answers["GetAdapter"] = [SQL]
    ran = cli(*shlex.split(line))
    said = ran.err.replace(str(tmp_path), "{folder}")
    assert (ran.code, said.count("\n"), message in said) == (code, 1, True), said
    assert said.startswith("error: USAGE: ") if line in MORE else said == f"error: {message}\n"
    assert [name for name, _ in admin.requests if not name.startswith(("Get", "List", "Read", "Watch"))] == []


def test_each_message_names_what_is_wrong_and_what_to_do_and_the_page_is_current():
    """Sixty at least; make docs writes the page."""
    assert [one.line for one in INPUTS if one.field not in one.message or one.remedy not in one.message] == []
    assert ({one.exit for one in INPUTS}, len({one.line for one in INPUTS})) == ({2, 3, 4, 5}, len(INPUTS))
    assert (len(INPUTS) >= 60, PAGE.read_text()) == (True, page())

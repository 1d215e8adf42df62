"""Whom a command talks to, for which pool, and who agrees before something is removed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import typer

from registry.cli import main
from registry.cli.change_set import Change
from registry.cli.client import AdminClient
from registry.cli.contexts import AdminContext, ContextFile, load_contexts
from registry.cli.failure import CliError, CommandFailure, Exit, usage
from registry.cli.main import run
from registry.cli.removal import agree, ask, ask_protected, by_labels, to_prune
from registry.cli.session import GlobalOptions, Session, pool_or_only, request_id_or_new, session_from
from registry.cli.views.output import Format, Output
from registry.client.address import Tls
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.test_sets import Terminal

CA, CERT, KEY = Path("/c/ca"), Path("/c/cert"), Path("/c/key")
PROD = AdminContext("p:1", str(CA), str(CERT), str(KEY), "dev", protected=True)
BARE = AdminContext("b:1")
TYPED = Tls(Path("/t/ca"), Path("/t/cert"), Path("/t/key"))


@pytest.fixture
def contexts(tmp_path, monkeypatch) -> ContextFile:
    """Two contexts, of which prod is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LORAPLANE_CONFIG", str(tmp_path / "c/contexts.json"))
    ContextFile(tmp_path / "c/contexts.json", "prod", {"prod": PROD, "bare": BARE}).save()
    return load_contexts(tmp_path / "c/contexts.json")


def session(
    admin: str | None = None, context: str | None = None, *typed: str, tls: Tls | None = None, command: str = "get"
) -> Session:
    output = Output(Format.JSONPATH, "{.name}")
    return session_from(GlobalOptions(admin, context, output, tls or Tls(), typed), command)


CHOICES = {
    "nothing is named: the current one": ((None, None), "prod", "p:1"),
    "a context by a variable": ((None, "bare"), "bare", "b:1"),
    "a context that is typed": ((None, "bare", "named_context"), "bare", "b:1"),
    "an address by a variable": (("a:1", None), "", "a:1"),
    "an address that is typed": (("a:1", None, "admin"), "", "a:1"),
    "a typed context goes before an address by a variable": (("a:1", "bare", "named_context"), "bare", "b:1"),
    "a typed address goes before a context by a variable": (("a:1", "bare", "admin"), "", "a:1"),
}


@pytest.mark.parametrize("case", CHOICES)
def test_what_is_typed_goes_before_variables_and_these_before_the_file(contexts, case):
    """So that nobody changes a service that is elsewhere."""
    given, name, admin = CHOICES[case]
    found = session(*given)
    assert (found.context_name, found.named_admin, found.form, found.template) == (
        name,
        admin,
        Format.JSONPATH,
        "{.name}",
    )
    assert found.context == (contexts.contexts[name] if name else None)
    assert found.is_context_typed == ("named_context" in given)
    assert found.is_protected == (name == "prod")
    assert not found.waits


@pytest.mark.parametrize("typed", [(), ("admin", "named_context")])
def test_an_address_and_a_context_named_alike_are_refused(contexts, typed):
    with pytest.raises(CliError, match="name one"):
        session("a:1", "bare", *typed)


@pytest.mark.parametrize("command", ["completion", "config", "dev", "digest", "explain", "schema"])
def test_commands_that_ask_no_service_read_no_contexts(contexts, command):
    contexts.path.write_text("{")
    assert session("a:1", "none", "admin", "named_context", command=command).context is None
    with pytest.raises(CliError):
        session()


def test_without_a_file_there_is_no_context(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LORAPLANE_CONFIG", str(tmp_path / "none.json"))
    found = session(tls=TYPED)
    assert (found.context, found.context_name, found.named_admin, found.tls) == (None, "", None, TYPED)


def test_certificates_are_those_of_the_context_unless_they_are_typed(contexts):
    assert session(tls=TYPED).tls == Tls(CA, CERT, KEY), "a variable is of another service"
    assert session(None, None, "tls_ca", "tls_cert", "tls_key", tls=TYPED).tls == TYPED
    assert session(None, "bare", tls=TYPED).tls == Tls(None, None, None)


def told(named: str | None, form: Format, capsys: Any, **more: Any) -> str:
    Session(named, form, Tls(), **more)._tell_context()
    return str(capsys.readouterr().err)


def test_the_context_that_is_changed_is_told_unless_it_was_typed(capsys):
    named = {"context": PROD, "context_name": "prod"}
    assert told("p:1", Format.TABLE, capsys, **named) == "context: prod (p:1)\n"
    assert told("p:1", Format.TABLE, capsys, is_context_typed=True, **named) == ""
    assert told("p:1", Format.JSON, capsys, **named) == ""
    assert told("p:1", Format.TABLE, capsys) == ""


def pools(*pages: pb.ListPoolsResponse) -> Any:
    class Client:
        @staticmethod
        def pool_pages() -> list[pb.ListPoolsResponse]:
            return list(pages)

    return Client()


def page(*names: str, unreadable: tuple[str, ...] = ()) -> pb.ListPoolsResponse:
    return pb.ListPoolsResponse(pools=[pb.Pool(name=name) for name in names], unreadable=unreadable)


def test_a_pool_may_be_left_out_where_there_is_one():
    assert pool_or_only(pools(), "given") == "given"
    assert pool_or_only(pools(page("a")), None) == "a"
    assert pool_or_only(pools(page(), page("a")), None) == "a"
    assert pool_or_only(pools(page("a", unreadable=("b",))), None) == "a"
    assert pool_or_only(pools(page(unreadable=("b",))), None) == "b"
    for several in (pools(page("a", "b")), pools(page("a"), page("b")), pools(page(unreadable=("a", "b")))):
        with pytest.raises(CliError, match=r"there are several pools \(a, b\)"):
            pool_or_only(several, None)
    with pytest.raises(CliError) as raised:
        pool_or_only(pools(page()), None)
    assert raised.value.failure.exit is Exit.NOT_FOUND


def test_request_ids():
    """W3: one that is given stays; two that are made differ."""
    assert request_id_or_new("q1") == "q1"
    assert request_id_or_new(None) != request_id_or_new(None)
    with pytest.raises(CliError) as raised:
        request_id_or_new("")
    assert raised.value.failure.field == "--request-id"


PLAIN = Session("a:1", Format.TABLE, Tls())
PROTECTED = Session("a:1", Format.TABLE, Tls(), PROD, "prod")
AS_JSON = Session("a:1", Format.JSON, Tls())


def names(count: int) -> list[str]:
    return [f"dev/a{number}" for number in range(count)]


@pytest.fixture
def says(monkeypatch) -> Any:
    def lay_down(answer: str | None) -> None:
        monkeypatch.setattr("sys.stdin", Terminal(answer) if answer is not None else io.StringIO("y\n"))

    return lay_down


@pytest.mark.parametrize("answer", ["y\n", "Y\n", "yes\n", " YES \n"])
def test_who_agrees_goes_on(says, capsys, answer):
    says(answer)
    agree(PLAIN, ["dev/a"], yes=False)
    assert capsys.readouterr().err == "delete dev/a\ndelete 1? [y/N] "


@pytest.mark.parametrize("answer", ["\n", "n\n", "", "yess\n", "ja\n"])
def test_who_does_not_agree_changes_nothing(says, capsys, answer):
    says(answer)
    with pytest.raises(typer.Abort):
        agree(PROTECTED, ["dev/a"], yes=False)
    told = "delete dev/a\ndelete 1 in the protected context prod? [y/N] note: nothing was changed\n"
    assert capsys.readouterr().err == told


def test_where_nobody_is_there_nothing_is_removed(says, capsys):
    says(None)
    with pytest.raises(CliError) as raised:
        agree(PLAIN, names(3), yes=False)
    assert raised.value.failure.message == "this would delete 3, and nobody is here to ask; give --yes"
    with pytest.raises(CliError, match="this would drop 1 in the protected context prod, and nobody"):
        agree(PROTECTED, ["x"], yes=False, what="drop")


@pytest.mark.parametrize(("count", "more"), [(20, []), (21, ["and 1 more"]), (25, ["and 5 more"])])
def test_the_first_twenty_are_shown(says, capsys, count, more):
    says(None)
    agree(PLAIN, names(count), yes=True)
    assert capsys.readouterr().err.splitlines() == [*(f"delete {one}" for one in names(20)), *more]


def test_standard_error_of_programs_stays_theirs(says, capsys):
    says(None)
    agree(AS_JSON, names(2), yes=True)
    agree(PLAIN, [], yes=False)
    assert capsys.readouterr().err == ""


def test_what_stands_on_the_command_line_is_asked_about_where_it_is_protected(says, capsys):
    says(None)
    ask_protected(PLAIN, ["dev"], yes=False)
    ask_protected(PROTECTED, ["dev"], yes=True, what="delete pool")
    assert capsys.readouterr().err == "delete pool dev\n"
    with pytest.raises(CliError):
        ask_protected(PROTECTED, ["dev"], yes=False)
    capsys.readouterr()
    ask(PLAIN, [Change("dev", pb.AdapterChange(delete="b"), "b")], yes=True)
    assert capsys.readouterr().err == "delete dev/b\n"


class Pages:
    """Of a client: adapters by pool."""

    def __init__(self, **pages: list[pb.ListAdaptersResponse]) -> None:
        self._pages = pages

    def adapter_pages(self, pool: str) -> list[pb.ListAdaptersResponse]:
        return self._pages[pool]


def listed(pool: str, *names: str, unreadable: tuple[str, ...] = (), **labels: str) -> pb.ListAdaptersResponse:
    spec = pb.AdapterSpec(labels=labels)
    adapters = [pb.Adapter(name=name, pool=pool, etag=f"{name}7", spec=spec) for name in names]
    return pb.ListAdaptersResponse(adapters=adapters, unreadable=unreadable)


def test_what_has_the_labels_is_removed_at_its_etag_in_each_pool(capsys):
    """W4 etag."""
    client = Pages(
        p=[listed("p", "A", "b", team="x", more="1"), listed("p", "c", team="y", unreadable=("t", "u"))],
        q=[listed("q", "a", "d", team="x")],
    )
    found = by_labels(client, ["p", "q"], {"team": "x"}, 3, {("p", "a")})
    assert [(one.pool, one.wire.delete, one.wire.etag, one.place) for one in found] == [
        ("p", "b", "b7", "b"),
        ("q", "a", "a7", "a"),
        ("q", "d", "d7", "d"),
    ]
    note = "note: 2 adapters of pool p cannot be read, and stay; see loraplane doctor\n"
    assert capsys.readouterr().err == note


@pytest.mark.parametrize(("limit", "count", "shown"), [(2, 3, "a0, a1, a2"), (20, 21, None), (5, 20, None)])
def test_no_more_than_the_limit_are_removed_at_once(limit, count, shown):
    client = Pages(p=[listed("p", *(f"a{number}" for number in range(count)), team="x")])
    assert len(by_labels(client, ["p"], {"team": "x"}, count)) == count
    with pytest.raises(CliError) as raised:
        by_labels(client, ["p"], {"team": "x"}, limit)
    failure = raised.value.failure
    some = shown or ", ".join(f"a{number}" for number in range(20)) + (", …" if count > 20 else "")
    assert failure.message == (
        f"{count} adapters would be deleted ({some}), more than {limit}; if all of them are meant, give --delete-limit "
        f"{count}"
    )
    assert (failure.exit, failure.reason, failure.field) == (Exit.REFUSED, "TOO_MANY_CHANGES", "--delete-limit")


@pytest.mark.parametrize(("prune", "selector"), [(True, None), (True, []), (False, ["a=1"])])
def test_prune_and_labels_go_together(prune, selector):
    with pytest.raises(CliError, match="go together"):
        to_prune(PLAIN, [], selector, 10, 1.0, prune=prune)
    assert to_prune(PLAIN, [], None, 10, 1.0, prune=False) == []


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (usage("no"), 2, "error: USAGE: no\n"),
        (CliError(CommandFailure(Exit.CONFLICT, "R", "no", "f", {}, "q")), 5, "error: R: f: no (request id q)\n"),
        (typer.Abort(), 130, ""),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_how_a_command_ends(monkeypatch, capsys, error, code, told):
    class Command:
        @staticmethod
        def main(*_arguments: object, **_options: object) -> None:
            raise error

    monkeypatch.setattr(main, "make_command", Command)
    assert run(["get", "pools"]) == code
    assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize("returned", [None, 0, 4])
def test_a_command_that_says_no_code_is_done(monkeypatch, returned):
    class Command:
        @staticmethod
        def main(*_arguments: object, **_options: object) -> int | None:
            return returned

    monkeypatch.setattr(main, "make_command", Command)
    assert run(["get", "pools"]) == (returned or 0)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("-o manifest export", "-o manifest goes with get adapters"),
        ("-o jsonpath={.a} history a", "-o jsonpath goes with get"),
        ("-o custom-columns=A:.a describe pool p", "-o custom-columns goes with get"),
    ],
)
def test_forms_that_only_get_has(capsys, monkeypatch, line, told):
    monkeypatch.setenv("LORAPLANE_ADMIN", "127.0.0.1:1")
    assert run(line.split()) == 2
    assert told in capsys.readouterr().err


def test_the_longest_that_a_client_waits_is_the_sessions(monkeypatch):
    """And it says once which context it changes, before the first change."""
    made: list[dict[str, Any]] = []

    class Client(AdminClient):
        def __init__(self, address: str, tls: Tls, **options: Any) -> None:
            made.append({"address": address, "tls": tls, **options})

    monkeypatch.setattr("registry.cli.session.AdminClient", Client)
    Session("a:1", Format.TABLE, TYPED, waits=True).client(7.0)
    [one] = made
    assert (one["address"], one["tls"], one["timeout_seconds"], one["waits"]) == ("a:1", TYPED, 7.0, True)


def test_a_question_is_seen_before_its_answer_is_waited_for(monkeypatch):
    """A terminal shows what does not end its line only once it is flushed."""
    shown = ""

    class Err(io.StringIO):
        def flush(self) -> None:
            nonlocal shown
            shown = self.getvalue()

    class Person(Terminal):
        def readline(self, *_size: int) -> str:
            return "y" if shown.endswith("delete 1? [y/N] ") else "n"

    monkeypatch.setattr("sys.stderr", Err())
    monkeypatch.setattr("sys.stdin", Person())
    agree(PLAIN, ["dev/a"], yes=False)

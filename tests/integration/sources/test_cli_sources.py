"""Remote sources at the command line: check, digest, and what apply pins."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from registry.cli import source_reader
from registry.cli.local_adapters import base_here, base_message
from registry.cli.main import run
from registry.lora.digest import CONFIG_FILE, WEIGHTS_FILE
from registry.lora.directory import digest_of
from registry.v1 import registry_pb2 as pb
from tests.corpus.drafts import LLAMA, Draft
from tests.integration.sources.conftest import PATIENT
from tests.support.fake_admin import FakeAdmin, applied, connected
from tests.support.web import Exchange, Site

GONE = "sha256:" + "0" * 64


@pytest.fixture
def base(tmp_path) -> Path:
    return LLAMA.write_base(tmp_path / "base")


@pytest.fixture(autouse=True)
def _patient(monkeypatch) -> None:
    monkeypatch.setattr(source_reader, "_LIMITS", PATIENT)


def host(site: Site, draft: Draft, path: str = "/team/good/") -> str:
    """Puts an adapter on a web server; gives its URL."""
    files = draft.files()
    site.put(path, files[CONFIG_FILE], files[WEIGHTS_FILE])
    return site.url + path


def packed(draft: Draft) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in draft.files().items():
            member = tarfile.TarInfo(f"adapter/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def looked(capsys, *arguments: str) -> tuple[int, str, str]:
    code = run(arguments)
    captured = capsys.readouterr()
    return int(code), captured.out, captured.err


def test_a_directory_of_a_web_server_is_checked_and_has_its_digest(capsys, web, base, tmp_path):
    """R4: the digest is that of the same files in a folder."""
    url, folder = host(web, LLAMA.draft()), LLAMA.draft().write(tmp_path / "a")
    assert looked(capsys, "check", url, "--base-model", str(base))[0] == 0
    code, out, _ = looked(capsys, "-o", "json", "digest", url)
    assert (code, json.loads(out)["digest"]) == (0, digest_of(folder))


def test_an_archive_is_looked_into(capsys, web, base, tmp_path):
    web.files["/a.tar.gz"] = packed(LLAMA.draft())
    url = f"{web.url}/a.tar.gz"
    assert looked(capsys, "check", url, "--base-model", str(base))[0] == 0
    assert looked(capsys, "digest", url)[1].strip() == digest_of(LLAMA.draft().write(tmp_path / "a"))


def test_a_wrong_adapter_is_told_by_its_findings(capsys, web, base):
    draft = LLAMA.draft()
    draft.config["lora_alpha"] = 0
    code, out, _ = looked(capsys, "-o", "json", "check", host(web, draft), "--base-model", str(base))
    assert (code, [one["reason"] for one in json.loads(out)["findings"]]) == (4, ["zero_alpha"])


@pytest.mark.parametrize(
    ("status", "code", "reason", "finding"),
    [(404, 6, "SOURCE_UNREADABLE", "source_missing"), (403, 6, "SOURCE_UNREADABLE", "source_denied")],
)
def test_what_cannot_be_read_is_said_with_the_replicas_reason(capsys, web, base, status, code, reason, finding):
    web.answers["/team/gone/" + CONFIG_FILE] = lambda exchange: exchange.send(status)
    found, _, err = looked(capsys, "-o", "json", "digest", f"{web.url}/team/gone/")
    error = json.loads(err)["error"]
    assert (found, error["reason"], error["metadata"]["finding"]) == (code, reason, finding)


@pytest.mark.parametrize(
    ("uri", "finding"),
    [
        ("https://169.254.169.254/latest/", "address_not_allowed"),
        ("https://[fe80::1]/a/", "address_not_allowed"),
        ("https://h/a/?token=CANARY", "invalid_source"),
        ("hf://org/model@main", "invalid_source"),
        ("oci://h/a", "invalid_source"),
    ],
)
def test_what_is_never_read_is_refused(capsys, uri, finding):
    """X1: a URI with a secret is not repeated."""
    code, _, err = looked(capsys, "-o", "json", "digest", uri)
    error = json.loads(err)["error"]
    assert (code, error["reason"], error["metadata"]["finding"]) == (4, "SOURCE_REFUSED", finding)
    assert "CANARY" not in err


def test_a_credential_of_the_desk_is_sent(capsys, web, base, tmp_path):
    url = host(web, LLAMA.draft())
    (tmp_path / "token").write_text("CANARY")
    entry = {"kind": "file", "path": str(tmp_path / "token"), "prefixes": [f"{web.url}/team"]}
    (tmp_path / "credentials").write_text(json.dumps({"acme": entry}))
    mine = ("--credentials", str(tmp_path / "credentials"), "--credential", "acme")
    assert looked(capsys, "digest", url, *mine)[0] == 0
    assert {headers.get("Authorization") for _, headers in web.seen} == {"Bearer CANARY"}
    code, _, err = looked(capsys, "digest", url, *mine[:3], "other")
    assert (code, "unknown_credential" in err) == (4, True)


class TestApply:
    """What apply does with sources of other hosts."""

    @pytest.fixture
    def admin(self, base) -> FakeAdmin:
        admin = FakeAdmin()
        pool = pb.Pool(name="dev", base_models=["tiny"], base=base_message(base_here(base)))
        admin.answers |= {"ApplyAdapters": [applied], "GetPool": [pool]}
        return admin

    @pytest.fixture
    def apply(self, admin, capsys, tmp_path):
        """Applies one adapter; gives the exit code, the digest that was sent, and standard error."""

        def call(uri: str, *more: str, digest: str | None = None) -> tuple[int, str | None, str]:
            source = {"uri": uri} | ({"digest": digest} if digest else {})
            document = {
                "apiVersion": "loraplane/v1",
                "kind": "Adapter",
                "metadata": {"name": "sql", "pool": "dev"},
                "spec": {"source": source},
            }
            (tmp_path / "m.yaml").write_text(json.dumps(document))
            with connected(admin) as address:
                code = run(["--admin", address, "apply", "-f", str(tmp_path / "m.yaml"), *more])
            sent = [change.upsert.spec.source.digest for one in admin.asked("ApplyAdapters") for change in one.changes]
            return int(code), sent[-1] if sent else None, capsys.readouterr().err

        return call

    def test_the_digest_is_pinned(self, apply, web, tmp_path):
        """R4: what is served later is what was there at this moment."""
        wanted = digest_of(LLAMA.draft().write(tmp_path / "a"))
        assert apply(host(web, LLAMA.draft())) == (0, wanted, "")

    def test_what_is_wrong_for_good_is_not_sent(self, apply, web):
        """W9: with the reason of the replicas."""
        draft = LLAMA.draft()
        draft.config["lora_alpha"] = 0
        code, sent, err = apply(host(web, draft))
        assert (code, sent, "zero_alpha" in err) == (4, None, True)
        web.files["/a.tar"] = b"no archive" * 100
        code, sent, err = apply(f"{web.url}/a.tar")
        assert (code, sent, "bad_archive" in err) == (4, None, True)

    def test_what_cannot_be_read_here_is_left_to_the_replicas_with_a_note(self, apply, web):
        code, sent, err = apply(f"{web.url}/gone/")
        assert (code, sent) == (0, "")
        assert err.startswith("note: ")
        assert "source_missing" in err

    def test_a_source_that_keeps_us_waiting_is_given_up(self, apply, web):
        """R16: the deadline is for all of them together."""

        def drip(exchange: Exchange) -> None:
            exchange.start(200, Content_Length=1 << 20)
            while True:
                exchange.wfile.write(b"x")
                exchange.wfile.flush()

        web.answers["/slow/" + CONFIG_FILE] = drip
        code, sent, err = apply(f"{web.url}/slow/", "--look-seconds", "0.2")
        assert (code, sent, "--look-seconds" in err) == (0, "", True)

    def test_what_is_pinned_or_not_to_be_looked_at_is_not_fetched(self, apply, web):
        assert apply(host(web, LLAMA.draft()), digest=GONE)[:2] == (0, GONE)
        assert apply(host(web, LLAMA.draft()), "--look-seconds", "0")[:2] == (0, "")
        assert web.seen == []

    def test_half_an_adapter_is_not_pinned(self, apply, web):
        draft = LLAMA.draft()
        draft.raw[WEIGHTS_FILE] = draft.files()[WEIGHTS_FILE][:-1]
        assert apply(host(web, draft))[:2] == (0, "")

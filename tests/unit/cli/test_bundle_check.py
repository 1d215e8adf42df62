"""check --signature-policy: a bundle is verified as a sidecar would, and what nobody asked of it is told."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from registry.cli.main import run
from registry.cli.source_reader import write_bundle_of
from registry.sources.base import ArtifactError, Stop
from tests.corpus.drafts import LLAMA
from tests.support.signing import make_ec_key
from tests.unit.model.test_signature_policy import policy_text

PRIVATE, PUBLIC = make_ec_key()


@pytest.fixture
def check(capsys, tmp_path, adapter):
    """Checks the adapter; gives exit code, reasons of findings and warnings, and what was told of an error."""
    base = LLAMA.write_base(tmp_path / "base")
    (tmp_path / "key.pem").write_bytes(PRIVATE)
    rules = [{"tenants": ["acme"], "signers": ["release"]}, {"tenants": ["free"], "unsigned": True}]
    (tmp_path / "policy.yaml").write_bytes(policy_text(rules, keys={"release": PUBLIC}, authorities={}))

    def run_check(*more: str) -> tuple[int, list[str], list[str], str]:
        code = run(["-o", "json", "check", str(adapter), "--base-model", str(base), *more])
        ours = ("bundle_unverified", "bundle_unread", "files_unsigned")
        out, err = capsys.readouterr()
        said = json.loads(out) if out else {"findings": [], "warnings": []}
        warnings = [one["reason"] for one in said["warnings"] if one["reason"] in ours]
        return code, [one["reason"] for one in said["findings"]], warnings, err

    return run_check


def policy(folder: Path, name: str = "acme/sql") -> list[str]:
    return ["--signature-policy", str(folder / "policy.yaml"), "--name", name]


def sign(adapter: Path, *flags: str) -> None:
    assert run(["-o", "name", "sign", str(adapter), "--key", str(adapter.parent / "key.pem"), *flags]) == 0


def test_a_bundle_that_counts_is_right_and_without_a_policy_nobody_asked(check, adapter, tmp_path, capsys):
    assert check()[:3] == (0, [], [])
    sign(adapter, "--name", "acme/*")
    capsys.readouterr()
    assert check()[:3] == (0, [], ["bundle_unverified"])
    assert check(*policy(tmp_path))[:3] == (0, [], [])
    (adapter / "later.txt").write_text("not signed")
    assert check(*policy(tmp_path))[:3] == (0, [], ["files_unsigned"])


@pytest.mark.parametrize(
    ("prepare", "name", "reasons"),
    [
        (lambda _: None, "acme/sql", ["bundle_missing"]),
        (lambda _: None, "free/sql", []),
        (lambda _: None, "bank/sql", ["signer_untrusted"]),
        (lambda one: sign(one, "--name", "team/*"), "acme/sql", ["signed_for_other"]),
        (lambda one: sign(one, "--pool", "p"), "acme/sql", ["signed_for_other"]),
        (lambda one: sign(one, "--not-after", "2020-01-01"), "acme/sql", ["signature_expired"]),
        (lambda one: (one / "model.sig").write_text("{}"), "acme/sql", ["bundle_invalid"]),
    ],
)
def test_what_a_sidecar_would_refuse_ends_with_4_and_its_reason(
    check, adapter, tmp_path, capsys, prepare, name, reasons
):
    """R21 proven-here: the same words before anything is applied."""
    prepare(adapter)
    capsys.readouterr()
    code, found, _, err = check(*policy(tmp_path, name))
    assert (code, found) == (4 if reasons else 0, reasons)
    assert all(one in err for one in reasons)


def test_a_policy_that_cannot_be_read_is_told(check, adapter, tmp_path):
    code, _, _, err = check("--signature-policy", "/nowhere", "--name", "a")
    assert (code, "--signature-policy /nowhere cannot be read" in err) == (2, True)
    (tmp_path / "policy.yaml").write_text("rules: [")
    code, _, _, err = check(*policy(tmp_path))
    assert (code, "line 1: it is no YAML" in err) == (2, True)
    (adapter / "model.sig").mkdir()
    code, _, _, err = check()
    assert (code, "cannot read" in err) == (2, True)


def test_a_source_comes_with_its_bundle_where_one_can_be_read(tmp_path):
    """A store that says of what is not there that it may not be read has none."""
    refused = [ArtifactError(reason, "no") for reason in ("source_denied", "source_io")]
    source = Mock(signature=Mock(side_effect=[b"bundle", None, *refused]))
    for number, expected in enumerate((["model.sig"], [], [])):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_bundle_of(source, folder, Stop())
        assert [one.name for one in folder.iterdir()] == expected
    with pytest.raises(ArtifactError):
        write_bundle_of(source, tmp_path, Stop())

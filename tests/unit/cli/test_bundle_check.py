"""check --signature-policy: a bundle is verified as a sidecar would, and what nobody asked of it is told."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from registry.cli.source_reader import write_bundle_of
from registry.sources.base import ArtifactError, Stop
from registry.v1 import registry_pb2 as pb
from tests.corpus.drafts import LLAMA
from tests.support.signing import make_ec_key
from tests.unit.model.test_signature_policy import policy_text

PRIVATE, PUBLIC = make_ec_key()


@pytest.fixture
def check(cli, tmp_path, adapter):
    """Checks the adapter; gives exit code, reasons of findings and warnings, and what was told of an error."""
    LLAMA.write_base(tmp_path / "base")
    (tmp_path / "key.pem").write_bytes(PRIVATE)
    rules = [{"tenants": ["acme"], "signers": ["release"]}, {"tenants": ["free"], "unsigned": True}]
    (tmp_path / "policy.yaml").write_bytes(policy_text(rules, keys={"release": PUBLIC}, authorities={}))

    def run_check(*more: str) -> tuple[int, list[str], list[str], str]:
        ran = cli("-o", "json", "check", "adapter", "--base-model", "base", *more)
        ours = ("bundle_unverified", "bundle_unread", "files_unsigned")
        said = ran.json if ran.out else {"findings": [], "warnings": []}
        warnings = [one["reason"] for one in said["warnings"] if one["reason"] in ours]
        return ran.code, [one["reason"] for one in said["findings"]], warnings, ran.err

    return run_check


POLICY = ["--signature-policy", "policy.yaml", "--name"]
SIGN = ["-o", "name", "sign", "adapter", "--key", "key.pem"]


def test_a_bundle_that_counts_is_right_and_without_a_policy_nobody_asked(cli, check, adapter):
    assert check()[:3] == (0, [], [])
    assert cli(*SIGN, "--name", "acme/*").code == 0
    assert check()[:3] == (0, [], ["bundle_unverified"])
    assert check(*POLICY, "acme/sql")[:3] == (0, [], [])
    (adapter / "later.txt").write_text("not signed")
    assert check(*POLICY, "acme/sql")[:3] == (0, [], ["files_unsigned"])


@pytest.mark.parametrize(
    ("flags", "name", "reasons"),
    [
        (None, "acme/sql", ["bundle_missing"]),
        (None, "free/sql", []),
        (None, "bank/sql", ["signer_untrusted"]),
        (["--name", "team/*"], "acme/sql", ["signed_for_other"]),
        (["--pool", "p"], "acme/sql", ["signed_for_other"]),
        (["--not-after", "2020-01-01"], "acme/sql", ["signature_expired"]),
    ],
)
def test_what_a_sidecar_would_refuse_ends_with_4_and_its_reason(cli, check, adapter, flags, name, reasons):
    """R21 proven-here: the same words before anything is applied."""
    if flags is not None:
        assert cli(*SIGN, *flags).code == 0
    code, found, _, err = check(*POLICY, name)
    assert (code, found) == (4 if reasons else 0, reasons)
    assert all(one in err for one in reasons)
    (adapter / "model.sig").write_text("{}")
    for one in ("acme/sql", "free/sql"):  # who may leave it out has one that is none
        assert check(*POLICY, one)[:2] == (4, ["bundle_invalid"])


@pytest.mark.parametrize("flags", [["--base", "served-as"], ["--pool", "de*"]])
def test_what_is_bound_to_a_pool_counts_in_it_as_a_sidecar_has_it(cli, check, admin, flags):
    """R21: by the names that its engines have for the base model too, and where it is the only pool."""
    pool = pb.Pool(name="dev", base_models=["served-as"])
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pool])]
    admin.answers["GetPool"] = [pool]
    assert cli(*SIGN, *flags).code == 0
    ran = cli("-o", "json", "check", "adapter", *POLICY, "acme/sql")
    assert (ran.code, ran.json["findings"]) == (0, [])


def test_a_policy_that_cannot_be_read_is_told(check, adapter, tmp_path):
    code, _, _, err = check("--signature-policy", "/nowhere", "--name", "a")
    assert (code, "--signature-policy /nowhere cannot be read" in err) == (2, True)
    (tmp_path / "policy.yaml").write_text("rules: [")
    code, _, _, err = check(*POLICY, "acme/sql")
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

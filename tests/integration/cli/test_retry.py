"""`loraplane retry` and `apply --retry`, through the real admin service on a real etcd."""

from __future__ import annotations

import pytest

from registry.model.status import Failed
from tests.integration.cli.test_doctor import WELL, write

FAILED = Failed(name="a", generation=1, reason="engine_refused", message="no", attempts=9, retry_at="soon")


@pytest.fixture
def applied(cli) -> str:
    """The manifest of one adapter, which is applied."""
    path = cli.manifest("a")
    cli.json("apply", "-f", path)
    return path


def test_what_failed_is_asked_for_again_as_the_same_generation(cli, etcd, applied, revision):
    """R17, W6: by a record that says who asked, and of which replica."""
    write(etcd, ("r1", {**WELL, "failed": [FAILED]}), ("r2", WELL))
    before = revision()
    told = cli.json("retry", "adapter", "a", "--replica", "r1", "--request-id", "again")
    (result,) = told["results"]
    assert (result["outcome"], result["adapter"]["generation"]) == ("updated", 1)
    assert told["revision"] > before
    assert cli.json("retry", "adapter", "A")["revision"] > told["revision"]


def test_an_unchanged_manifest_is_applied_again_only_if_it_is_asked_for(cli, applied):
    """R17: with --retry."""
    (result,) = cli.json("apply", "-f", applied)["results"]
    assert result["outcome"] == "unchanged"
    (result,) = cli.json("apply", "-f", applied, "--retry")["results"]
    assert (result["outcome"], result["adapter"]["generation"]) == ("updated", 1)

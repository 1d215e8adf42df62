"""Names and paths that engines list."""

from __future__ import annotations

import pytest

from tests.support.checkers.engine_names import artifact_of, generation_of, key_of


@pytest.mark.parametrize(
    ("path", "artifact"),
    [
        ("/store/adapters/sha256-" + "a" * 64, "a" * 64),
        ("/adapters/sha256-" + "0" * 64, "0" * 64),
        ("adapters/sha256-" + "a" * 64, None),
        ("/store/adapters/sha256-" + "a" * 63, None),
        ("/store/adapters/sha256-" + "a" * 65, None),
        ("/store/adapters/sha256-" + "A" * 64, None),
        ("/store/adapters/sha256-" + "a" * 64 + "/x", None),
        ("/store/other/sha256-" + "a" * 64, None),
        ("", None),
    ],
)
def test_a_path_of_a_store_names_its_artifact(path, artifact):
    """R4 digest-true."""
    assert artifact_of(path) == artifact


def test_a_name_with_a_version_is_its_adapters():
    """R11 foreign-safe."""
    assert [key_of(name) for name in ("acme/A", "acme/a@3", "b")] == ["acme%2Fa", "acme%2Fa", "b"]


def test_a_name_may_tell_a_generation():
    """R4 digest-true."""
    assert [generation_of(name) for name in ("acme/a@3", "b", "b@x")] == [3, None, None]

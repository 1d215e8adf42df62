"""The names of artifacts: they are written in records and on disks, so they must never come out differently."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from registry.lora.digest import FileEntry, canonical_json, manifest_digest, prepared_id

CONFIG = FileEntry("adapter_config.json", 2, "a" * 64)
WEIGHTS = FileEntry("adapter_model.safetensors", 3, "b" * 64)


def test_the_digest_is_that_of_the_manifest_as_documented():
    """R4 digest-true: the form is fixed; anybody can compute it with sha256sum and a JSON printer."""
    manifest = (
        '{"files":[{"path":"adapter_config.json","sha256":"' + "a" * 64 + '","size":2},'
        '{"path":"adapter_model.safetensors","sha256":"' + "b" * 64 + '","size":3}],"schema":"lora-manifest/1"}'
    )
    assert manifest_digest([WEIGHTS, CONFIG]) == "sha256:" + hashlib.sha256(manifest.encode()).hexdigest()


def test_the_id_depends_on_source_policy_and_base():
    """R4: what was made in another way stands under another name."""
    source, policy = "sha256:" + "a" * 64, {"name": "prepare", "version": 1}
    plain = prepared_id(source, policy, None)
    others = {
        prepared_id("sha256:" + "b" * 64, policy, None),
        prepared_id(source, policy | {"version": 2}, None),
        prepared_id(source, policy, "c" * 64),
    }
    expected = '{"base":null,"policy":{"name":"prepare","version":1},"source":"sha256:' + "a" * 64 + '"}'
    assert plain == hashlib.sha256(expected.encode()).hexdigest()
    assert len(others | {plain}) == 4


@given(st.lists(st.builds(FileEntry, st.text(), st.integers(0), st.text()), unique_by=lambda entry: entry.path))
def test_the_order_of_files_is_no_matter(entries: list[FileEntry]):
    assert manifest_digest(entries) == manifest_digest(reversed(entries))


def test_canonical_json_has_no_spaces_sorts_and_keeps_unicode():
    assert canonical_json({"b": [1, 2], "a": "é"}) == '{"a":"é","b":[1,2]}'.encode()

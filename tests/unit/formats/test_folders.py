"""Folders of adapters: what a listing and the small files in it say, and paths that lead out."""

from __future__ import annotations

import pytest

from registry.formats.folders import AdapterFolder, folders_document, paths_of
from registry.model.errors import InvalidArgument


def test_a_folder_is_named_after_its_adapter_and_says_its_base():
    config = '{"base_model_name_or_path": "acme/tiny", "r": 8}'
    meta = '{"fileset": "f", "updated_at": null}'
    found = folders_document("/adapters/", [AdapterFolder("a", config, meta), AdapterFolder("b", "[]")], "x")
    assert found == {
        "adapters": [
            {"name": "a", "folder": "/adapters/a", "base_model_name_or_path": "acme/tiny", "fileset": "f"},
            {"name": "b", "folder": "/adapters/b"},
        ]
    }


def test_paths_are_read_a_line_each():
    text = "./acme--sql/adapter_config.json\n\n/mnt/adapters/legal/\n"
    paths = paths_of(text, "x")
    assert [one.path for one in paths] == ["acme--sql", "/mnt/adapters/legal"]
    assert folders_document(None, paths, "x")["adapters"] == [
        {"name": "acme--sql"},
        {"name": "legal", "folder": "/mnt/adapters/legal"},
    ]


@pytest.mark.parametrize(
    ("root", "folder", "message"),
    [
        (None, AdapterFolder("../etc"), "leads out of its tree"),
        ("/adapters", AdapterFolder("/etc"), "leads out of /adapters"),
        ("/adapters", AdapterFolder("a", "{"), "is no JSON"),
        ("/adapters", AdapterFolder("a", "[" * 100_000), "is no JSON"),
    ],
)
def test_what_is_wrong_is_named(root, folder, message):
    with pytest.raises(InvalidArgument, match=message) as caught:
        folders_document(root, [folder], "x")
    assert (caught.value.field or "").startswith("x: ")


def test_an_empty_list_is_refused():
    with pytest.raises(InvalidArgument, match="is empty"):
        paths_of(" \n", "x")

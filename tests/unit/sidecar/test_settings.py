"""Settings of a sidecar, as they come from flags and the environment."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sidecar.settings import SidecarSettings


def labels_of(folder, text: object) -> dict[str, str]:
    needed = {"etcd": "127.0.0.1:1", "pool": "p", "replica": "r1", "engine": "http://e:1", "store": folder}
    return dict(SidecarSettings(**needed, insecure=True, labels=text).labels)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", {}),
        ("gpu=a10", {"gpu": "a10"}),
        ("gpu=a10,zone=", {"gpu": "a10", "zone": ""}),
        ("gpu=a=b,", {"gpu": "a=b"}),
        ({"gpu": "a10"}, {"gpu": "a10"}),
    ],
)
def test_labels_are_pairs(tmp_path, text, labels):
    assert labels_of(tmp_path, text) == labels


@pytest.mark.parametrize("text", ["gpu", "=a10", "gpu=a10,zone", "gpu=a10,=b"])
def test_one_that_is_no_pair_is_refused_whatever_stands_beside_it(tmp_path, text):
    """A replica with other labels than were meant would serve what others are to serve."""
    with pytest.raises(ValidationError, match="is not k=v,k=v"):
        labels_of(tmp_path, text)

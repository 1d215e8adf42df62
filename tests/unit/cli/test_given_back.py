"""What a command took, and what it did, when something fails in the middle."""

from __future__ import annotations

from unittest import mock

import pytest

from registry.cli import apply
from registry.cli.doctor import collect


class Failed(Exception):
    """Whatever it is."""


def test_after_a_look_at_etcd_that_fails_no_connection_is_left(monkeypatch):
    """X3 given-back."""
    client = mock.AsyncMock(status=mock.AsyncMock(side_effect=Failed))
    monkeypatch.setattr(collect, "EtcdClient", lambda _: client)
    with pytest.raises(Failed):
        collect.look_at_etcd(mock.Mock(), mock.Mock())
    client.aclose.assert_awaited_once_with()


def test_what_was_applied_is_told_though_its_rollout_cannot_be_followed(monkeypatch):
    """W8 no-false-fail: whoever reads the output knows what there is."""
    told = mock.Mock()
    monkeypatch.setattr(apply, "print_plain", told)
    monkeypatch.setattr(apply, "follow_shown", mock.Mock(side_effect=Failed))
    with pytest.raises(Failed):
        apply.tell(mock.Mock(), mock.Mock(is_table=False), [], mock.Mock(wait=True, dry_run=False))
    told.assert_called_once()

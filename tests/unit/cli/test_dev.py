"""The local stack, where there is none."""

from __future__ import annotations

import pytest


def test_a_stack_that_is_not_there_is_named_with_the_remedy(cli, tmp_path):
    ran = cli("-o", "json", "dev", "status", "--dir", str(tmp_path))
    assert (ran.code, ran.error["reason"]) == (3, "STACK_NOT_FOUND")
    assert "loraplane dev up" in ran.error["message"]


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_folder_that_cannot_be_used_is_named(cli, tmp_path, folder):
    (tmp_path / "file").write_text("x")
    ran = cli("dev", "up", "--engine", "sim", "--dir", folder)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert f"cannot use {folder}" in ran.err
    assert "--dir" in ran.err

"""The local stack, where there is none."""

from __future__ import annotations


def test_a_stack_that_is_not_there_is_named_with_the_remedy(cli, tmp_path):
    ran = cli("-o", "json", "dev", "status", "--dir", str(tmp_path))
    assert (ran.code, ran.error["reason"]) == (3, "STACK_NOT_FOUND")
    assert "loraplane dev up" in ran.error["message"]

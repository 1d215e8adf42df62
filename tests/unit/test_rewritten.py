"""What workers find of tests before they begin."""

from __future__ import annotations

import os

from tests.support.rewritten import kept, rewrite_all


def test_a_module_is_rewritten_once_as_pytest_does_it(request, tmp_path, monkeypatch):
    """A worker that finds it need not do it; what changed since is done anew."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    module = tmp_path / "test_it.py"
    module.write_text("def test_it():\n    assert 1 + 1 == 2\n")
    rewrite_all(request.config, tmp_path)
    first = kept(module).read_bytes()
    assert b"_pytest.assertion.rewrite" in first
    os.utime(kept(module), (1, 1))
    rewrite_all(request.config, tmp_path)
    assert kept(module).stat().st_mtime == 1
    module.write_text("def test_it():\n    assert 1 + 2 == 3\n")
    rewrite_all(request.config, tmp_path)
    assert kept(module).read_bytes() != first

"""Rewrites the assertions of all tests once, before workers begin, each of which would do it by itself."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

TESTS = Path(__file__).parents[1]


def rewrite_all(config: pytest.Config, folder: Path = TESTS) -> None:
    """Leaves in ``__pycache__`` what pytest would leave there, for each test module of a folder that lacks it.

    Args:
        config: that of the run that is about to start workers; where it may write no bytecode, nothing is done.
        folder: where the modules are.
    """
    if sys.dont_write_bytecode or not (fresh := [path for path in sorted(folder.rglob("test_*.py")) if _lacks(path)]):
        return
    count = os.cpu_count() or 1
    fork = multiprocessing.get_context("fork")
    parts = [fork.Process(target=_rewrite, args=(config, fresh[number::count])) for number in range(count)]
    for part in parts:
        part.start()
    for part in parts:
        part.join()


def kept(path: Path) -> Path:
    """Where pytest keeps a module with its assertions rewritten."""
    return rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)


def _lacks(path: Path) -> bool:
    return rewrite._read_pyc(path, kept(path)) is None


def _rewrite(config: pytest.Config, paths: list[Path]) -> None:
    for path in paths:
        kept(path).parent.mkdir(exist_ok=True)
        digest, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, digest, kept(path))

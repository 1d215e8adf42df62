"""A second replica's engine, beside the session's one with the plugin."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.support.engines import RealVllm


@pytest.fixture(scope="session")
def second_vllm(tiny, tmp_path_factory) -> Iterator[RealVllm]:
    """Real vLLM with a copy of the tiny model, which may be exchanged; not yet started."""
    folder = tmp_path_factory.mktemp("second")
    shutil.copytree(tiny.model, folder / "model")
    vllm = RealVllm(folder / "model", folder / "vllm")
    yield vllm
    vllm.stop()

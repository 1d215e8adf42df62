"""docs/corpus.md is what the corpus and the kept verdicts say."""

from __future__ import annotations

import json

from tests.corpus.defects import DEFECTS
from tests.corpus.hostile import FOLDERS
from tests.support.corpus_page import MODELS, PAGE, VERDICTS, page


def test_the_page_is_current():
    """Fails when a row or a verdict changed: make docs."""
    assert PAGE.read_text() == page()


def test_every_row_was_tried_on_every_architecture_but_for_two():
    """The two are a pipe, which is tried once on its own, and a device that never ends."""
    kept = json.loads(VERDICTS.read_text())
    rows = {one.name for one in (*DEFECTS, *FOLDERS)}
    for model in MODELS:
        assert rows - set(kept[model]) == {"fifo_adapter_config.json", "link_to_a_device"}

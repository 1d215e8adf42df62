"""What is converted, what is only copied, and what is handed to the arithmetic; a model stands for what needs torch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import registry.tools.convert
from registry.client.upload.destination import destination
from registry.lora.base_directory import read_base
from registry.lora.digest import CONFIG_FILE, WEIGHTS_FILE
from registry.lora.directory import digest_of
from registry.lora.findings import CannotPublish, Finding, UnfitAdapter
from registry.lora.policy import AdapterLimits, Policy
from registry.tools.convert import publishing
from registry.tools.convert.options import ConversionOptions, ModuleOutcome
from registry.tools.convert.publishing import Compared, PublishedFiles, publish
from tests.corpus.drafts import LLAMA, Draft, Values
from tests.unit.convert.test_options import plain, with_magnitude

OUTCOME = ModuleOutcome("m", "rank", 4, 2, 4, 0.0)


class Arithmetic:
    """Writes a good adapter whatever it is asked for; `asked` is what it was given."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def convert(
        self, source: Path, out: Path, _opened: object, _task: object, _options: object, base: Any
    ) -> Sequence[ModuleOutcome]:
        self.asked.append({"source": source, "base": base})
        for name, data in LLAMA.draft(seed=2).files().items():
            (out / name).write_bytes(data)
        return [OUTCOME]


@pytest.fixture
def arithmetic(monkeypatch) -> Arithmetic:
    """In the place of all that needs torch: each first pair and each base is told by what it was made of."""
    made = Arithmetic()
    fakes = {
        "arithmetic": SimpleNamespace(kept=lambda path: ("kept", path), computed=lambda init: ("computed", init)),
        "stored": SimpleNamespace(places_of_base=lambda path: ("places", path)),
        "converter": SimpleNamespace(BaseWeights=lambda places, first: (places, first), convert=made.convert),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(registry.tools.convert, name, fake, raising=False)
    return made


@pytest.fixture
def base(tmp_path) -> Path:
    return LLAMA.write_base(tmp_path / "llama")


def published(
    tmp_path: Path, draft: Draft, base: Path | None, limits: AdapterLimits | None = None, **wish: Any
) -> PublishedFiles:
    """What comes of a draft that is published to out."""
    initial = wish.pop("initial", None)
    source = tmp_path / "trained"
    if not source.exists():
        draft.write(source)
    compared = Compared(read_base(base) if base else None, base, limits or AdapterLimits())
    options = ConversionOptions(has_initial=initial is not None, **wish)
    return publish(source, destination(str(tmp_path / "out")), compared, options, initial, None)


def test_of_what_is_only_shortened_the_base_is_not_read(tmp_path, base, arithmetic, monkeypatch):
    """Whoever has none at hand, or one that is packed, can publish it all the same."""

    monkeypatch.setattr(publishing, "names_of", Mock(side_effect=ValueError("its config.json is none")))
    found = published(tmp_path, LLAMA.draft(), base, rank=2)
    assert arithmetic.asked == [{"source": tmp_path / "trained", "base": None}]
    assert (found.outcomes, found.digest) == ([OUTCOME], digest_of(tmp_path / "out"))
    assert found.digest != digest_of(tmp_path / "trained")
    assert [one.reason for one in found.warnings] == ["engine_coverage_unknown"]


@pytest.mark.parametrize(
    ("init", "initial", "first"),
    [
        ("PiSSA", None, ("computed", "pissa")),
        ("olora", Path("first"), ("kept", Path("first"))),
        ("lora_ga", Path("first"), ("kept", Path("first"))),
    ],
)
def test_an_initialisation_is_taken_out_of_the_bases_weights(tmp_path, base, arithmetic, init, initial, first):
    """R4: as it was kept, else as it is computed anew."""
    published(tmp_path, plain(init_lora_weights=init), base, initial=initial)
    assert arithmetic.asked[0]["base"] == (("places", base), first)


def test_magnitudes_go_into_the_pairs_with_the_bases_weights(tmp_path, base, arithmetic):
    draft = with_magnitude(base_model_name_or_path="org/another")
    found = published(tmp_path, draft, base)
    assert arithmetic.asked[0]["base"] == (("places", base), None)
    assert [one.reason for one in found.warnings] == ["engine_coverage_unknown", "base_name_differs"]


def test_without_the_base_what_needs_it_is_refused(tmp_path, arithmetic):
    with pytest.raises(CannotPublish, match="give its directory with --base-model"):
        published(tmp_path, with_magnitude(), None)
    assert (arithmetic.asked, (tmp_path / "out").exists()) == ([], False)


NO_HEADER = Finding("not_an_adapter", "model.safetensors", "no header", "its index", "take another")


@pytest.mark.parametrize(
    ("error", "is_told"),
    [(ValueError("its index"), True), (UnfitAdapter([NO_HEADER]), True), (RuntimeError("its index is ours"), False)],
    ids=["index", "header", "a fault of our own"],
)
def test_a_base_whose_weights_cannot_be_read_is_told(tmp_path, base, arithmetic, monkeypatch, error, is_told):
    stored = registry.tools.convert.stored  # type: ignore[attr-defined]
    monkeypatch.setattr(stored, "places_of_base", Mock(side_effect=error))
    told = f"{base} cannot be read as a base model: .*its index.*in safetensors" if is_told else "ours"
    with pytest.raises(CannotPublish if is_told else RuntimeError, match=told):
        published(tmp_path, with_magnitude(), base)


def objected(tmp_path: Path, draft: Draft, base: Path, limits: AdapterLimits | None = None, **wish: Any) -> list[Any]:
    """Where it is refused: each reason and key."""
    with pytest.raises(UnfitAdapter) as refused:
        published(tmp_path, draft, base, limits, **wish)
    assert not (tmp_path / "out").exists()
    return [(one.reason, one.key) for one in refused.value.findings]


def test_what_the_replicas_would_refuse_is_not_put_there(tmp_path, base, arithmetic):
    """R4, R14: looked at as it will be, not only as it was; what cannot be computed is not tried."""
    assert [reason for reason, _ in objected(tmp_path / "bias", plain(bias="all"), base)] == ["bias_not_supported"]
    diverged = LLAMA.draft()
    name, values = next(iter(diverged.tensors.items()))
    diverged.tensors[name] = Values("F32", values.shape, struct.pack("<f", float("inf")) + bytes(len(values.data) - 4))
    assert objected(tmp_path / "diverged", diverged, base) == [("not_finite", name)]
    for missing in (WEIGHTS_FILE, CONFIG_FILE):
        half = LLAMA.draft()
        half.raw[missing] = None
        assert objected(tmp_path / missing, half, base, policy=Policy()) == [("source_incomplete", missing)]
    impossible = objected(tmp_path / "fan", with_magnitude(fan_in_fan_out=True), base)
    assert [key for _, key in impossible] == ["fan_in_fan_out"]
    assert arithmetic.asked == []
    for number, wish in enumerate(({}, {"rank": 2})):
        found = objected(tmp_path / f"{number}", LLAMA.draft(), base, AdapterLimits(max_rank=3), **wish)
        assert [reason for reason, _ in found] == ["rank_too_high"]

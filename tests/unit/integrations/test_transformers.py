"""The callback of transformers, with a Trainer and a client that are played."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from threading import Condition, Event, Thread, current_thread, main_thread
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import pytest

from loraplane import AdapterResidency, NotFound, PoolResidency, Published, Reason, Residence, State, Unavailable
from registry.model.records import AdapterSpec

LORA = SimpleNamespace(peft_config={"default": SimpleNamespace(peft_type="PeftType.LORA")})


@pytest.fixture
def module(monkeypatch) -> ModuleType:
    """The integration, beside what it needs of transformers."""
    made = ModuleType("transformers")
    made.TrainerCallback = type("TrainerCallback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", made)
    monkeypatch.delitem(sys.modules, "loraplane.integrations.transformers", raising=False)
    return import_module("loraplane.integrations.transformers")


class PlayedClient:
    """A registry that takes what is published, or fails with `failure`. `served`: generations that a replica serves."""

    def __init__(self) -> None:
        self.versions: list[tuple[Path, dict[str, str], dict[str, Any]]] = []
        self.promoted: list[int] = []
        self.withdrawn: list[str] = []
        self.served: set[int] = set()
        self.is_deleted = False
        self.failure: Exception | None = None
        self.labels: dict[str, str] | None = None
        self.goes_on, self.promotes, self.is_promoting, self.is_publishing = Event(), Event(), Event(), Event()
        self.goes_on.set()
        self.promotes.set()

    def get(self, name: str, pool: str) -> Any:
        if self.failure is not None:
            raise self.failure
        if self.labels is None:
            raise NotFound(Reason.ADAPTER_NOT_FOUND, "none")
        return SimpleNamespace(labels=self.labels)

    def publish(self, source: Path, name: str, pool: str, *, labels: dict[str, str], **more: Any) -> Published:
        self.is_publishing.set()
        assert self.goes_on.wait(60)
        if self.failure is not None:
            raise self.failure
        assert (source / "adapter_config.json").is_file(), "its files are there when it is published"
        self.versions.append((source, labels, more))
        self.labels = labels
        return Published(name, pool, len(self.versions), source.as_uri(), "", 1, "r")

    def promote(self, name: str, pool: str, *, generation: int, wait: bool) -> None:
        self.is_promoting.set()
        assert self.promotes.wait(60)
        self.promoted.append(generation)

    def withdraw(self, name: str, pool: str) -> None:
        self.withdrawn.append(name)

    def residency(self, pool: str, timeout_seconds: float) -> Iterator[PoolResidency]:
        parts = [Residence(f"r{g}", "", {}, "", g, State.SERVING, "", loaded=True, last_used="") for g in self.served]
        adapter = AdapterResidency("acme/p", len(self.versions), "eager", tuple(parts), "")
        yield PoolResidency(1, MappingProxyType({} if self.is_deleted else {"acme/p": adapter}))


class PlayedTrainer:
    """Calls a callback as the Trainer does: an evaluation comes before the checkpoint of its step."""

    def __init__(self, callback: Any, folder: Path, *, rank: int = 0, adapter: str = "") -> None:
        self.callback, self.adapter = callback, adapter
        self.args = SimpleNamespace(output_dir=str(folder), run_name="run-7")
        self.state = SimpleNamespace(is_world_process_zero=rank == 0, global_step=0, log_history=[])
        self.model = SimpleNamespace(peft_config=LORA.peft_config, save_pretrained=self.write)

    def write(self, folder: Path) -> None:
        there = folder / self.adapter
        there.mkdir(parents=True, exist_ok=True)
        (there / "adapter_config.json").write_text("{}")
        (there / "adapter_model.safetensors").write_text(str(self.state.global_step))

    def begin(self, model: Any = None) -> PlayedTrainer:
        self.callback.on_train_begin(self.args, self.state, None, model=model or self.model)
        return self

    def step(self, *, saves: bool = True, metrics: dict[str, float] | None = None) -> None:
        self.state.global_step += 1
        self.state.log_history.append({"step": self.state.global_step, "loss": 0.5, "epoch": 0.1})
        self.callback.on_step_end(self.args, self.state, None, model=self.model)
        if metrics is not None:
            self.state.log_history.append({**metrics, "step": self.state.global_step, "epoch": 0.1})
            self.callback.on_evaluate(self.args, self.state, None, metrics=metrics)
        if saves:
            self.write(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}")
            self.callback.on_save(self.args, self.state, None)

    def end(self) -> None:
        self.callback.on_train_end(self.args, self.state, None)


@pytest.fixture
def client() -> PlayedClient:
    return PlayedClient()


@pytest.fixture
def make(module, client):
    def made(**more: Any) -> Any:
        return module.LoraPlaneCallback("acme/p", "qwen", registry=client, **({"wait": True} | more))

    return made


@pytest.mark.parametrize("adapter", ["", "policy"])
def test_each_checkpoint_is_published_with_step_run_and_metrics(make, client, tmp_path, adapter):
    """From a folder that the Trainer's own count of checkpoints does not touch; labels of the adapter stay.

    The end of the run deletes the adapter if that is wanted.
    """
    client.labels, withdraws = {"team": "bi", "step": "old", "eval_loss": "of another run"}, bool(adapter)
    callback = make(labels={"by": "me"}, load="lazy", ttl="7d", withdraw_at_end=withdraws)
    trainer = PlayedTrainer(callback, tmp_path, adapter=adapter).begin()
    trainer.state.log_history = [{"of_before": 9.0}, {"epoch": 0.0}]
    trainer.step(metrics={"eval_loss": 0.25})
    trainer.step()
    trainer.end()
    (folder, labels, more), (other, later, _) = client.versions
    assert folder == tmp_path / "loraplane" / "step-1"
    assert sorted(one.name for one in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert labels == {
        "team": "bi",
        "by": "me",
        "step": "1",
        "run": "run-7",
        "loss": "0.5",
        "eval_loss": "0.25",
    }
    assert more == {"wait": True, "load": "lazy", "ttl": "7d"}
    assert (other.name, later["step"], "eval_loss" in later) == ("step-2", "2", False)
    assert trainer.callback.published.generation == 2
    assert not list((tmp_path / "loraplane").glob("*.*")), "nothing half-written"
    assert client.withdrawn == ["acme/p"] * withdraws


def test_every_n_steps_the_adapter_alone_is_written_and_published(make, client, tmp_path):
    trainer = PlayedTrainer(make(every=2), tmp_path, adapter="policy")
    trainer.args.run_name = None
    trainer.begin()
    for _ in range(5):
        trainer.step()
    assert [folder.name for folder, _, _ in client.versions] == ["step-2", "step-4"]
    assert re.fullmatch("[0-9a-f]{8}", client.versions[0][1]["run"]), "a run without a name has a number"
    assert [(folder / "adapter_model.safetensors").read_text() for folder, _, _ in client.versions] == ["2", "4"]


def test_a_run_may_begin_with_what_it_has(make, client, tmp_path):
    """Rollouts before the first step have a version too; a run that goes on has one of the step it goes on from."""
    trainer = PlayedTrainer(make(every=1, at_start=True, run="mine"), tmp_path)
    assert trainer.callback.published_step == -1
    trainer.state.global_step = 7
    trainer.begin()
    assert (trainer.callback.published.generation, trainer.callback.published_step) == (1, 7)
    trainer.step(saves=False)
    assert (trainer.callback.published.generation, trainer.callback.published_step) == (2, 8)
    told = [(one.name, labels["step"], labels["run"]) for one, labels, _ in client.versions]
    assert told == [("step-7", "7", "mine"), ("step-8", "8", "mine")]
    client.failure = Unavailable(Reason.ADMIN_UNAVAILABLE, "away")
    with pytest.raises(Unavailable):
        PlayedTrainer(make(every=1, at_start=True, on_error="raise"), tmp_path).begin()


def test_of_several_adapters_of_a_model_the_default_one_is_published(make, client, tmp_path):
    """TRL keeps a copy beside the one that it trains, of which the rest would be fetched by each replica too."""
    trainer = PlayedTrainer(make(every=1), tmp_path).begin()

    def write(folder: Path) -> None:
        for adapter in ("", "ref"):
            trainer.adapter = adapter
            PlayedTrainer.write(trainer, folder)

    trainer.model.save_pretrained = write
    trainer.step(saves=False)
    [(folder, _, _)] = client.versions
    assert sorted(one.name for one in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def test_of_several_sets_of_data_all_evaluations_are_labels(make, client, tmp_path):
    trainer = PlayedTrainer(make(), tmp_path).begin()
    trainer.step(saves=False, metrics={"eval_a_loss": 1.0})
    trainer.callback.on_evaluate(trainer.args, trainer.state, None, metrics={"eval_b_loss": 2.0})
    trainer.write(tmp_path / "checkpoint-1")
    trainer.callback.on_save(trainer.args, trainer.state, None)
    [(_, labels, _)] = client.versions
    assert (labels["eval_a_loss"], labels["eval_b_loss"]) == ("1", "2")


def test_what_the_registry_takes_no_label_of_keeps_no_version_back(make, client, tmp_path):
    """As a reward function with a long name, in TRL's metrics."""
    trainer = PlayedTrainer(make(run="r" * 300), tmp_path).begin()
    trainer.step(metrics={f"rewards/{'f' * 60}/mean": 1.0, "_own": 2.0, "rewards/f/mean": 0.5})
    [(_, labels, _)] = client.versions
    assert labels == {"step": "1", "run": "r" * 256, "loss": "0.5", "rewards_f_mean": "0.5"}
    assert AdapterSpec(source={"uri": "s3://b/v1"}, labels=labels).labels == labels


def test_of_many_metrics_the_newest_are_labels(make, client, tmp_path):
    """The registry takes at most 64 labels."""
    PlayedTrainer(make(), tmp_path).begin().step(metrics={f"eval_{number}": 0.5 for number in range(100)})
    [(_, labels, _)] = client.versions
    assert ("eval_99" in labels, len(labels) <= 64) == (True, True)


@pytest.mark.parametrize("every", [1, "save"])
def test_only_rank_0_does_anything(make, client, tmp_path, every):
    asked: list[object] = []
    callback = make(every=every, at_start=True, promote=asked.append, withdraw_at_end=True)
    trainer = PlayedTrainer(callback, tmp_path, rank=1).begin()
    trainer.step(metrics={"eval_loss": 1.0})
    trainer.end()
    assert (client.versions, asked, client.withdrawn) == ([], [], [])
    assert not (tmp_path / "loraplane").exists()


def test_a_second_run_publishes_too_and_a_run_leaves_no_thread_behind(make, client, tmp_path):
    """X3 given-back, R7 files-pinned. What the first wrote at the same step goes, and is not removed once more."""
    trainer = PlayedTrainer(make(wait=False), tmp_path)
    for run in range(2):
        trainer.begin()
        trainer.state.global_step = 0
        for _ in range(4):
            trainer.step()
            trainer.callback._settle(20.0)
            assert trainer.callback.last_error is None
        thread = trainer.callback._thread
        assert thread.daemon, "a registry that hangs must not keep the process"
        (tmp_path / "loraplane" / "step-4" / f"of_run_{run}").touch()
        trainer.end()
        thread.join(60)
        assert not thread.is_alive()
    assert [folder.name for folder, _, _ in client.versions] == ["step-1", "step-2", "step-3", "step-4"] * 2
    assert sorted(one.name for one in (tmp_path / "loraplane").iterdir()) == ["step-2", "step-3", "step-4"]
    assert not (tmp_path / "loraplane" / "step-4" / "of_run_0").exists()


def test_a_run_that_published_nothing_ends_at_once(make, tmp_path):
    trainer = PlayedTrainer(make(end_seconds=0.05), tmp_path).begin()
    trainer.end()
    assert trainer.callback.last_error is None


def test_a_registry_that_is_away_stops_no_run_and_the_error_can_be_read(make, client, tmp_path, caplog):
    """Nor is a version published then without the labels that the adapter has."""
    client.failure, client.labels = Unavailable(Reason.DEADLINE_EXCEEDED, "no answer of admin:7600"), {"team": "bi"}
    trainer = PlayedTrainer(make(), tmp_path).begin()
    trainer.step()
    assert trainer.callback.last_error is client.failure
    assert "cannot publish acme/p in qwen: no answer of admin:7600" in caplog.text
    client.failure = None
    trainer.step()
    trainer.end()
    assert (trainer.callback.last_error, [one["team"] for _, one, _ in client.versions]) == (None, ["bi"])


def test_who_wants_a_run_to_end_by_it_says_so(make, client, tmp_path):
    client.failure = Unavailable(Reason.DEADLINE_EXCEEDED, "no answer")
    trainer = PlayedTrainer(make(on_error="raise"), tmp_path).begin()
    trainer.step()
    with pytest.raises(Unavailable):
        trainer.step()
    with pytest.raises(Unavailable):
        trainer.end()


def test_a_run_after_one_that_failed_begins_anew(make, client, tmp_path):
    """As in a notebook, once the registry is back; a process that was killed amid a copy leaves one."""
    client.failure = Unavailable(Reason.DEADLINE_EXCEEDED, "no answer")
    trainer = PlayedTrainer(make(on_error="raise"), tmp_path).begin()
    trainer.step()
    with pytest.raises(Unavailable):
        trainer.step()
    client.failure = None
    (tmp_path / "loraplane" / f"step-3.{os.getpid()}").mkdir()
    trainer.begin().step()
    trainer.step()
    trainer.end()
    assert [folder.name for folder, _, _ in client.versions] == ["step-3", "step-4"]


def test_a_slow_registry_holds_no_step_up_and_gets_the_newest_version_next(module, client, tmp_path, monkeypatch):
    client.goes_on.clear()
    monkeypatch.setattr(module, "monotonic", lambda: 0.0)
    callback = module.LoraPlaneCallback("acme/p", "qwen", registry=client, end_seconds=1.0)
    trainer = PlayedTrainer(callback, tmp_path).begin()
    for _ in range(5):
        trainer.step()
    assert client.versions == []
    client.goes_on.set()
    trainer.end()
    names = [folder.name for folder, _, _ in client.versions]
    assert names[-1] == "step-5"
    assert len(names) <= 2, "what nobody wants any more is left out"
    assert sorted(one.name for one in (tmp_path / "loraplane").iterdir()) == names, "and its files go"


def test_the_end_waits_for_so_long_and_no_longer(make, client, tmp_path):
    client.goes_on.clear()
    trainer = PlayedTrainer(make(wait=False, end_seconds=0.05), tmp_path).begin()
    trainer.step()
    trainer.end()
    assert "not published within 0.05 s" in str(trainer.callback.last_error)
    client.goes_on.set()


def test_folders_of_old_versions_go_but_not_while_a_replica_serves_them(make, client, tmp_path):
    """R7 files-pinned: the source of what is served stays, whatever the count says."""
    client.served = {1}
    trainer = PlayedTrainer(make(keep_last_n=2), tmp_path).begin()
    for _ in range(4):
        trainer.step()
    assert sorted(one.name for one in (tmp_path / "loraplane").iterdir()) == ["step-1", "step-3", "step-4"]
    client.served = {5}
    shutil.rmtree(tmp_path / "loraplane" / "step-3")  # by somebody who needed the room
    trainer.step()
    assert sorted(one.name for one in (tmp_path / "loraplane").iterdir()) == ["step-4", "step-5"]
    client.is_deleted = True
    trainer.step()
    assert sorted(one.name for one in (tmp_path / "loraplane").iterdir()) == ["step-5", "step-6"]
    assert trainer.callback.last_error is None


@pytest.mark.parametrize(
    ("served", "left"), [({1}, ["step-1", "step-5"]), ({1, 77}, [f"step-{step}" for step in range(1, 6)])]
)
def test_files_of_publications_that_failed_go_unless_one_of_them_may_be_served(make, client, tmp_path, served, left):
    """X3 given-back: a registry that is away for a while does not fill the disk of the run."""
    client.served = served
    trainer = PlayedTrainer(make(), tmp_path).begin()
    trainer.step()
    client.failure = Unavailable(Reason.ADMIN_UNAVAILABLE, "no answer")
    for _ in range(3):
        trainer.step()
    assert len(list((tmp_path / "loraplane").iterdir())) == 4
    client.failure = None
    trainer.step()
    assert sorted(one.name for one in (tmp_path / "loraplane").iterdir()) == left


def test_a_second_run_writes_anew_what_a_first_one_could_not_publish(make, client, tmp_path):
    client.failure = Unavailable(Reason.ADMIN_UNAVAILABLE, "no answer")
    trainer = PlayedTrainer(make(), tmp_path).begin()
    for _ in range(2):
        trainer.step()
    first = trainer.callback._thread
    with trainer.callback._changed:  # so that it hears of the end and of the next run together
        trainer.end()
        trainer.begin()
    first.join(60)
    assert not first.is_alive(), "each run has a thread of its own"
    client.failure, trainer.state.global_step = None, 0
    client.goes_on.clear()
    client.is_publishing.clear()
    trainer.callback._wait = False
    trainer.step()
    assert client.is_publishing.wait(60)
    trainer.step()
    client.goes_on.set()
    trainer.end()
    assert [folder.name for folder, _, _ in client.versions] == ["step-1", "step-2"]


@pytest.mark.parametrize(("keep", "fails"), [(1, True), (3, False)], ids=["some are old", "none is old"])
def test_nothing_is_removed_while_nobody_can_say_what_is_served(make, client, tmp_path, monkeypatch, keep, fails):
    def away(*_: object, **__: object) -> Iterator[PoolResidency]:
        raise Unavailable(Reason.DEADLINE_EXCEEDED, "no answer")
        yield

    monkeypatch.setattr(client, "residency", away)
    trainer = PlayedTrainer(make(keep_last_n=keep), tmp_path).begin()
    for _ in range(3):
        trainer.step()
    assert len(list((tmp_path / "loraplane").iterdir())) == 3
    assert isinstance(trainer.callback.last_error, Unavailable) is fails


@pytest.mark.parametrize(("loss", "promoted"), [(0.1, [1]), (0.9, [])])
def test_a_version_is_promoted_after_an_evaluation_that_allows_it(make, client, tmp_path, loss, promoted):
    trainer = PlayedTrainer(make(promote=lambda metrics: metrics["eval_loss"] < 0.5), tmp_path).begin()
    trainer.step(metrics={"eval_loss": loss})
    trainer.step()
    trainer.end()
    assert client.promoted == promoted


def test_a_second_run_has_its_own_version_of_a_step_promoted(make, client, tmp_path):
    """And not that of the run before, which its metrics say nothing of."""
    trainer = PlayedTrainer(make(promote=lambda metrics: metrics["eval_loss"] < 0.5), tmp_path)
    for loss in (0.9, 0.1, 0.1):
        trainer.begin()
        trainer.state.global_step = 0
        trainer.step(metrics={"eval_loss": loss})
        trainer.end()
    assert client.promoted == [2, 3]


def test_a_thread_that_hears_late_of_its_runs_end_takes_nothing_of_the_next_run(make, client, tmp_path):
    """The next run would wait for ever for what nobody is at."""
    is_idle, hears, late = Event(), Event(), list[Thread]()

    class Changed(Condition):
        def wait(self, timeout: float | None = None) -> bool:
            if current_thread() is not main_thread():
                is_idle.set()
            heard = super().wait(timeout)
            if current_thread() in late:
                self.release()
                assert hears.wait(60)
                self.acquire()
            return heard

    callback = make(every=1, wait=False)
    callback._changed = Changed()
    trainer = PlayedTrainer(callback, tmp_path).begin()
    trainer.step(saves=False)
    assert is_idle.wait(60)
    late.append(callback._thread)
    trainer.end()
    client.is_publishing.clear()
    client.goes_on.clear()
    trainer.begin().step(saves=False)
    assert client.is_publishing.wait(60)
    trainer.step(saves=False)
    hears.set()
    late[0].join(60)
    assert not late[0].is_alive()
    client.goes_on.set()
    trainer.end()
    assert [labels["step"] for _, labels, _ in client.versions] == ["1", "2", "3"]


def test_an_evaluation_after_the_version_is_there_promotes_it_too(make, client, tmp_path):
    asked: list[object] = []
    trainer = PlayedTrainer(make(every=1, promote=lambda metrics: asked.append(metrics) or True), tmp_path).begin()
    trainer.step(saves=False)
    trainer.callback.on_evaluate(trainer.args, trainer.state, None)
    trainer.end()
    assert (client.promoted, asked) == ([1], [{}]), "of an evaluation without metrics, too"


def test_an_evaluation_while_another_version_is_promoted_is_not_forgotten(make, client, tmp_path):
    client.promotes.clear()
    trainer = PlayedTrainer(make(every=1, promote=lambda _: True, wait=False), tmp_path).begin()
    trainer.step(saves=False, metrics={"eval_loss": 0.1})
    assert client.is_promoting.wait(60)
    trainer.step(saves=False, metrics={"eval_loss": 0.1})
    client.promotes.set()
    trainer.end()
    assert client.promoted == [1, 2]


def test_a_checkpoint_without_an_adapter_is_said_and_leaves_nothing(make, client, tmp_path):
    trainer = PlayedTrainer(make(), tmp_path).begin()
    trainer.state.global_step = 1
    trainer.callback.on_save(trainer.args, trainer.state, None)
    assert "there is no adapter_config.json in" in str(trainer.callback.last_error)
    assert list((tmp_path / "loraplane").iterdir()) == []


class SafetensorError(Exception):
    """As safetensors fails to write."""


FULL = "No space left on device"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, FULL), SafetensorError(FULL)])
def test_a_full_disk_stops_no_run(make, client, tmp_path, error):
    def full(_folder: Path) -> None:
        raise error

    trainer = PlayedTrainer(make(every=1), tmp_path).begin()
    trainer.model.save_pretrained = full
    trainer.step(saves=False)
    assert "No space left" in str(trainer.callback.last_error)
    assert (client.versions, list((tmp_path / "loraplane").iterdir())) == ([], [])


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (SimpleNamespace(), "no adapter"),
        (SimpleNamespace(peft_config={"default": SimpleNamespace(peft_type="IA3")}), "adapters of the kind IA3"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_without_lora_ends_at_its_begin_in_every_process(make, tmp_path, model, found, rank):
    with pytest.raises(ValueError, match=f"has {found}: give the Trainer the model of peft.get_peft_model"):
        PlayedTrainer(make(), tmp_path, rank=rank).begin(model)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"every": 0}, ValueError, "every=0: write"),
        ({"every": "step"}, ValueError, "every='step'"),
        ({"every": True}, ValueError, "every=True"),
        ({"keep_last_n": 0}, ValueError, "at least 1 is kept"),
        ({"on_error": "ignore"}, ValueError, 'write "warn" or "raise"'),
        ({"lod": "lazy"}, TypeError, "takes no 'lod'; of publish it takes .*load"),
        ({"upload": "s3://b/step"}, TypeError, "takes no 'upload'; of publish it takes"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(make, wrong, error, words):
    with pytest.raises(error, match=words):
        make(**wrong)


def test_a_registry_is_named_by_its_address_and_made_when_it_is_needed(module, monkeypatch, client, tmp_path):
    asked: list[str] = []
    monkeypatch.setattr(module, "Registry", lambda address: asked.append(address) or client)
    callback = module.LoraPlaneCallback("acme/p", "qwen", registry="admin:7600", wait=True)
    trainer = PlayedTrainer(callback, tmp_path).begin()
    assert asked == []
    trainer.step()
    trainer.step()
    assert (asked, len(client.versions)) == (["admin:7600"], 2)

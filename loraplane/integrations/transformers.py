"""Callback with which transformers' Trainer publishes the LoRA adapter of a run.

    from loraplane.integrations.transformers import LoraPlaneCallback

    trainer = Trainer(model=peft_model, args=args, callbacks=[LoraPlaneCallback("acme/policy", "qwen-prod")])

Versions are published beside the run, in a thread of their own: a registry that is slow or away holds no step up, and
ends no run. Only the newest version waits meanwhile, for nobody wants the ones before it any more. Each is copied
to ``OUTPUT_DIR/loraplane/step-N`` first, since the Trainer removes its checkpoints by a count of its own and a version
whose files are gone can neither be fetched by a new replica nor be gone back to.

This module imports the client and transformers, and nothing else.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Condition, Thread, current_thread
from time import monotonic
from typing import Any, Literal

from transformers import TrainerCallback

from loraplane import AsyncRegistry, NotFound, Published, Registry

_log = logging.getLogger(__name__)
_CONFIG = "adapter_config.json"
# What the callback says itself of each version, and what can only be said of one.
_OWN = frozenset({"self", "source", "name", "pool", "labels", "wait", "replace", "request_id"})
_OF_ONE_VERSION = frozenset({"upload", "digest", "signature", "expect"})
_MOST_METRICS = 12
# As the registry takes labels.
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MOST_LABEL_CHARACTERS = 256
_RESIDENCY_SECONDS = 10.0
Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Version:
    """Files of a step that are to be published."""

    step: int
    folder: Path
    labels: Mapping[str, str]


class LoraPlaneCallback(TrainerCallback):  # type: ignore[misc] # of a package that is not here
    """A callback of transformers' Trainer. Only the process of rank 0 does anything.

    Attributes:
        last_error: why the newest thing that was tried failed; None: it did not.
        published: the newest version that is registered; None: none is.
        published_step: the step that it is of; -1: none is.
    """

    def __init__(
        self,
        name: str,
        pool: str,
        *,
        every: Literal["save"] | int = "save",
        at_start: bool = False,
        keep_last_n: int = 3,
        wait: bool = False,
        on_error: Literal["warn", "raise"] = "warn",
        promote: Callable[[Metrics], bool] | None = None,
        withdraw_at_end: bool = False,
        labels: Mapping[str, str] | None = None,
        run: str = "",
        registry: Registry | str = "",
        end_seconds: float = 60.0,
        **publish: Any,  # noqa: ANN401 - as `Registry.publish` has them
    ) -> None:
        """Connects to nothing yet.

        Args:
            name: of the adapter.
            pool: its replicas serve it.
            every: publish whenever the Trainer saves a checkpoint, or the adapter alone after so many steps.
            at_start: publish what the adapter is before the first step too, for rollouts that ask the replicas.
            keep_last_n: folders of so many newest versions stay; an older one's goes once no replica serves it.
            wait: hold the run up until each version is served, for at most `timeout_seconds` of `publish`.
            on_error: ``raise`` ends the run at its next step after something failed.
            promote: True if canaries have what they serve promoted, by the metrics of an evaluation at its step.
            withdraw_at_end: delete the adapter at the end of the run.
            labels: of each version, beside step, run, metrics, and those that the adapter has.
            run: name of the run; empty: the Trainer's ``run_name``, or a number of its own.
            registry: a client, or the address of the admin service; empty: that of the environment or context.
            end_seconds: how long the end of the run waits for what is under way.
            publish: more for `Registry.publish`, such as ``load="lazy"`` or ``canaries=Canaries(1)``.

        Raises:
            ValueError: a value is none of these.
            TypeError: `publish` has something that `Registry.publish` does not take.
        """
        _check(every, keep_last_n, on_error, publish)
        self._name, self._pool, self._every, self._keep, self._wait = name, pool, every, keep_last_n, wait
        self._raises, self._promote, self._withdraws = on_error == "raise", promote, withdraw_at_end
        self._starts = at_start
        self._labels, self._run, self._end_seconds, self._options = dict(labels or {}), run, end_seconds, publish
        self._registry = registry
        self._kept_labels: Mapping[str, str] | None = None
        self._folders: dict[int, Path] = {}
        # Of versions whose publication failed: they may be registered all the same.
        self._unsettled: set[Path] = set()
        self._next: _Version | None = None
        self._is_at_work = False
        self._changed = Condition()
        self._thread: Thread | None = None
        self._begin()

    def _begin(self) -> None:
        """Knows nothing of a run before: its steps have the numbers of this one's, and its failure has ended it."""
        self.last_error: Exception | None = None
        self.published: Published | None = None
        self._evaluated: tuple[int, Metrics] = (-1, {})
        self.published_step, self._good_step, self._promoted_step = -1, -2, -3

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Refuses a run that has nothing to publish, in every process, so that none waits for another.

        Then publishes what there is before the first step, if that was asked for.

        Raises:
            ValueError: its model has no LoRA adapter.
        """
        configs = getattr(model, "peft_config", None) or {}
        kinds = {str(getattr(one, "peft_type", "")).rpartition(".")[2].upper() for one in configs.values()}
        if kinds != {"LORA"}:
            found = f"adapters of the kind {', '.join(sorted(kinds))}" if kinds else "no adapter"
            raise ValueError(
                f"LoraPlaneCallback publishes a LoRA adapter, and the model of this run has {found}: give the Trainer "
                "the model of peft.get_peft_model(model, LoraConfig(…)), or leave the callback out"
            )
        self._begin()
        self._run = self._run or str(getattr(args, "run_name", None) or uuid.uuid4().hex[:8])
        if self._starts and state.is_world_process_zero:
            self._offer(args, state, lambda folder: _save(model, folder))
            self._raise_error()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Publishes the checkpoint that was saved."""
        if self._every == "save" and state.is_world_process_zero:
            there = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self._offer(args, state, lambda folder: _copy(_adapter_in(there), folder))

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Publishes after so many steps; says what failed, if that is to end the run."""
        if not state.is_world_process_zero:
            return
        self._raise_error()
        if isinstance(self._every, int) and state.global_step % self._every == 0:
            self._offer(args, state, lambda folder: _save(model, folder))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Metrics | None = None, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Has the version of this step promoted, once it is there, if the metrics say so."""
        if not state.is_world_process_zero:
            return
        step, before = self._evaluated  # of several sets of data each is evaluated by itself
        found = dict(metrics or {})
        self._evaluated = state.global_step, {**(before if step == state.global_step else {}), **found}
        if self._promote is not None and self._promote(found):
            with self._changed:
                self._good_step = state.global_step
                self._start()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Waits for what is under way, and deletes the adapter if that was asked for."""
        if not state.is_world_process_zero:
            return
        self._settle(self._end_seconds)
        if self._withdraws:
            self._try("withdraw", lambda registry: registry.withdraw(self._name, self._pool))
        with self._changed:
            self._thread = None
            self._changed.notify_all()
        self._raise_error()

    def _raise_error(self) -> None:
        """Ends the run by what failed, if that was asked for."""
        if self._raises and self.last_error is not None:
            raise self.last_error

    def _offer(self, args: Any, state: Any, fill: Callable[[Path], None]) -> None:  # noqa: ANN401 - the Trainer's
        """Has a version published soon, in place of one that waits; its files are written first."""
        folder = Path(args.output_dir).absolute() / "loraplane" / f"step-{state.global_step}"
        self._unsettled.discard(folder)
        try:
            _fill_whole(folder, fill)
        except Exception as error:  # noqa: BLE001 - as in `_try`; safetensors has its own for a full disk
            self._failed("write", error)
            return
        with self._changed:
            overtaken, self._next = self._next, _Version(state.global_step, folder, self._labels_of(state))
            self._start()
        if overtaken is not None and overtaken.folder not in {folder, *list(self._folders.values())}:
            shutil.rmtree(overtaken.folder, ignore_errors=True)
        if self._wait:
            self._settle(None)

    def _labels_of(self, state: Any) -> Mapping[str, str]:  # noqa: ANN401 - the Trainer's
        """Step, run and the newest metrics; those of an evaluation only if it was at this step."""
        newest: dict[str, Any] = {}
        for entry in state.log_history[-2:]:
            newest |= {
                name: entry[name] for name in entry if name not in {"step", "epoch"} and not _is_of_evaluation(name)
            }
        if self._evaluated[0] == state.global_step:
            newest |= self._evaluated[1]
        numbers = [(name, value) for name, value in newest.items() if isinstance(value, int | float)]
        numbers = [one for one in numbers if not one[0].endswith(("_runtime", "_per_second"))]
        named = [(re.sub(r"[^A-Za-z0-9._-]", "_", name), value) for name, value in numbers]
        # With a name that is none for a label the whole version would be refused; cut short, it may be another's.
        fitting = [(name, f"{value:.6g}") for name, value in named if _LABEL.fullmatch(name)]
        own = {"step": str(state.global_step), "run": self._run[:_MOST_LABEL_CHARACTERS]}
        return {**dict(fitting[-_MOST_METRICS:]), **self._labels, **own}

    def _start(self) -> None:
        """Wakes the thread, which is made when there is something for it to do."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="loraplane", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _is_promotion_due(self) -> bool:
        return self._good_step == self.published_step != self._promoted_step

    def _is_called(self) -> bool:
        """True if there is something to do."""
        return self._next is not None or self._is_promotion_due()

    def _is_of_before(self) -> bool:
        """True in the thread of an earlier run, once a later one has its own."""
        return self._thread not in {None, current_thread()}

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._is_of_before():
                    return
                self._is_at_work = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_called() or self._thread is not current_thread())
                if self._is_of_before() or not self._is_called():
                    return  # what there is to do now is a later run's
                version, self._next, self._is_at_work = self._next, None, True
            if version is not None:
                self._try("publish", partial(self._publish, version))
                if self.published_step == version.step:
                    self._try("remove old versions of", self._remove_old)
            if self._is_promotion_due():
                self._promoted_step = self._good_step
                self._try("promote", self._promote_published)

    def _settle(self, seconds: float | None) -> None:
        """Waits until nothing is under way, for at most so long."""
        until = None if seconds is None else monotonic() + seconds
        with self._changed:
            while self._is_at_work or self._is_called():
                left = None if until is None else until - monotonic()
                if left is not None and left <= 0:
                    self._failed("wait", TimeoutError(f"not published within {seconds:g} s of the run's end"))
                    return
                self._changed.wait(left)

    def _try(self, what: str, do: Callable[[Any], None]) -> None:
        """Does it; whatever it fails with ends no run but one that asked for that."""
        try:
            if isinstance(self._registry, str):
                self._registry = Registry(self._registry)
            do(self._registry)
        except Exception as error:  # noqa: BLE001 - a run of days must not end by what stands beside it
            self._failed(what, error)
        else:
            self.last_error = None

    def _failed(self, what: str, error: Exception) -> None:
        self.last_error = error
        _log.warning("LoraPlane: cannot %s %s in %s: %s", what, self._name, self._pool, error)

    def _publish(self, version: _Version, registry: Any) -> None:  # noqa: ANN401 - a client, or what is like one
        self._unsettled.add(version.folder)
        if self._kept_labels is None:
            try:
                labels = registry.get(self._name, self._pool).labels
                self._kept_labels = {name: labels[name] for name in labels if not _is_of_evaluation(name)}
            except NotFound:
                self._kept_labels = {}
        labels = {**self._kept_labels, **version.labels}
        made = registry.publish(version.folder, self._name, self._pool, labels=labels, wait=self._wait, **self._options)
        self.published, self.published_step = made, version.step
        # A later run of this callback writes the same folders again, which are those of its own versions then.
        others = {generation: folder for generation, folder in self._folders.items() if folder != version.folder}
        self._folders = {**others, made.generation: version.folder}
        self._unsettled.discard(version.folder)

    def _promote_published(self, registry: Any) -> None:  # noqa: ANN401 - a client, or what is like one
        assert self.published is not None  # noqa: S101 - a step was published
        registry.promote(self._name, self._pool, generation=self.published.generation, wait=self._wait)

    def _remove_old(self, registry: Any) -> None:  # noqa: ANN401 - a client, or what is like one
        """Removes folders of older versions of this run, but for those that a replica serves, or is to serve.

        Those of publications that failed go where no replica has a version that is not known here.
        """
        old = sorted(self._folders)[: -self._keep]
        if not old and not self._unsettled:
            return
        with closing(registry.residency(self._pool, timeout_seconds=_RESIDENCY_SECONDS)) as states:
            found = next(states).adapters.get(self._name.lower())
        served = {found.generation, *(one.generation for one in found.replicas)} if found is not None else set()
        for generation in [one for one in old if one not in served]:
            shutil.rmtree(self._folders.pop(generation), ignore_errors=True)
        if served <= self._folders.keys():
            for folder in self._unsettled - set(self._folders.values()):
                shutil.rmtree(folder, ignore_errors=True)
            self._unsettled = set()


def _check(every: object, keep_last_n: int, on_error: str, publish: Mapping[str, object]) -> None:
    if every != "save" and not (isinstance(every, int) and not isinstance(every, bool) and every >= 1):
        raise ValueError(f'every={every!r}: write "save", or a number of steps of at least 1')
    if keep_last_n < 1:
        raise ValueError(f"keep_last_n={keep_last_n!r}: at least 1 is kept, since replicas fetch it")
    if on_error not in {"warn", "raise"}:
        raise ValueError(f'on_error={on_error!r}: write "warn" or "raise"')
    known = set(inspect.signature(AsyncRegistry.publish).parameters) - _OWN - _OF_ONE_VERSION
    if unknown := set(publish) - known:
        raise TypeError(f"LoraPlaneCallback takes no {min(unknown)!r}; of publish it takes {', '.join(sorted(known))}")


def _is_of_evaluation(name: str) -> bool:
    """True for a metric as the Trainer names it; what an evaluation found holds of no other weights."""
    return name.startswith("eval_")


def _adapter_in(checkpoint: Path) -> Path:
    """The folder of an adapter in a checkpoint: itself, or the one that has the adapter's name."""
    found = [one.parent for one in (checkpoint / _CONFIG, *sorted(checkpoint.glob(f"*/{_CONFIG}"))) if one.is_file()]
    if not found:
        raise ValueError(f"there is no {_CONFIG} in {checkpoint}, nor in a folder there")
    return found[0]


def _copy(adapter: Path, folder: Path) -> None:
    for file in adapter.glob("adapter_*"):
        shutil.copyfile(file, folder / file.name)


def _save(model: Any, folder: Path) -> None:  # noqa: ANN401 - a model of peft
    model.save_pretrained(folder)
    for file in _adapter_in(folder).iterdir():
        file.rename(folder / file.name)
    for other in [one for one in folder.iterdir() if one.is_dir()]:  # as the copy that TRL compares with
        shutil.rmtree(other)


def _fill_whole(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fills a folder that is there as a whole, or not at all. Raises what `fill` raises."""
    new = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(new, ignore_errors=True)  # of a process that was killed: in containers all have the same number
    new.mkdir(parents=True)
    try:
        fill(new)
        if folder.exists():  # of an earlier run, which ended and went on from a checkpoint before
            shutil.rmtree(folder)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)

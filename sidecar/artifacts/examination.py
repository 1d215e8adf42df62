"""Examines one adapter after another, as a process of its own with limits.

Whoever writes an adapter decides what its examination costs. So it runs where it can be ended from outside, and where
what it uses is nobody else's; see `sidecar.artifacts.examiner` for the other end. Requests come on standard input and
their answers go to standard output, each after its length. The process ends with whoever started it.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import struct
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel, ConfigDict

from registry.lora.base import BaseModules, Shape, compress
from registry.lora.check import Changes
from registry.lora.coverage.findings import prepared_modules
from registry.lora.digest import CONFIG_FILE
from registry.lora.directory import Examined, examine_directory
from registry.lora.findings import AdapterWarning, FindingReason, UnfitAdapter, leading, summary
from registry.lora.policy import AdapterLimits, policy_of
from registry.lora.prepare import WeightsLayout, new_config, new_weights
from registry.lora.safetensors import Tensor
from registry.lora.tensor_names import entry_of

LENGTH = struct.Struct(">I")
EXIT_NO_MEMORY = 66
MAX_OPEN_FILES = 32


class BaseOfReplica(BaseModel):
    """A base model, as `BaseModules` is made of it. What an engine says of it is asked elsewhere."""

    modules: dict[str, Shape]
    names: tuple[str, ...]
    architecture: str | None
    is_tied: bool
    head_size: int | None
    engine: str

    @classmethod
    def of(cls, base: BaseModules) -> BaseOfReplica:
        """The base, as it is sent."""
        return cls.model_construct(
            modules=dict(base.modules),
            names=base.names,
            architecture=base.architecture,
            is_tied=base.is_tied,
            head_size=base.head_size,
            engine=base.engine,
        )


class ExaminationRequest(BaseModel):
    """One artifact to examine.

    Attributes:
        directory: of the adapter's two files.
        policy: what may be done to it, as values of `policy_of`.
        has_base: whether it is compared with a base model.
        base: that base model; None: the one of the request before.
        memory_bytes: the address space that the process may use.
        processor_seconds: what the examination may use.
    """

    directory: str
    policy: dict[str, object]
    has_base: bool
    base: BaseOfReplica | None
    memory_bytes: int
    processor_seconds: int


class Examination(BaseModel):
    """An adapter that may be served, and what has to be written anew for that.

    Attributes:
        rank: its highest LoRA rank.
        modules: patterns of what it changes once it is prepared, see `registry.lora.base.compress`; True: an embedding.
        base_model: what its configuration calls its base.
        warnings: what somebody should know.
        renamed: old to new names of tensors.
        dropped: tensors that are left out.
        config: fields of adapter_config.json that are changed.
        new_config: the new adapter_config.json; None: it stays.
        new_weights: how the new weights are made; None: they stay.
        start: position of the first tensor's bytes in the weights as they arrived.
    """

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    rank: int
    modules: dict[str, bool]
    base_model: str | None
    warnings: tuple[AdapterWarning, ...]
    renamed: dict[str, str]
    dropped: tuple[str, ...]
    config: dict[str, object]
    new_config: bytes | None
    new_weights: WeightsLayout | None
    start: int

    @property
    def is_as_it_came(self) -> bool:
        """True if nothing has to be written anew."""
        return self.new_config is None and self.new_weights is None


class Objection(BaseModel):
    """Why an adapter cannot be served: the first finding's reason, and all of them in a sentence."""

    reason: FindingReason
    message: str


class ExaminationAnswer(BaseModel):
    """One of the three; `failure`: number and text of the error with which a file could not be read."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    examination: Examination | None = None
    objection: Objection | None = None
    failure: tuple[int, str] | None = None


class Examining:
    """Answers requests, and keeps the base model from one to the next."""

    def __init__(self) -> None:
        """No base is known yet."""
        self._base: BaseModules | None = None

    def answer(self, request: ExaminationRequest) -> ExaminationAnswer:
        """Examines what the request names, the numbers included."""
        if request.base is not None:
            self._base = BaseModules(**dict(request.base))
        directory = Path(request.directory)
        base = self._base if request.has_base else None
        try:
            examined = examine_directory(directory, base, AdapterLimits(), policy_of(request.policy))
            return ExaminationAnswer(examination=_examination(directory, examined))
        except UnfitAdapter as error:
            found = leading(error.findings)
            return ExaminationAnswer(objection=Objection(reason=found[0].reason, message=summary(found)))
        except OSError as error:
            return ExaminationAnswer(failure=(error.errno or 0, str(error)))


def _examination(directory: Path, examined: Examined) -> Examination:
    verdict, changes = examined.verdict, examined.verdict.changes
    has_new_weights = bool(changes.renamed or changes.dropped or changes.rotary)
    return Examination(
        rank=verdict.rank,
        modules=compress(prepared_modules(map(entry_of, _prepared(examined.opened.header.tensors, changes)))),
        base_model=examined.opened.config.base_model_name_or_path,
        warnings=verdict.warnings,
        renamed=dict(changes.renamed),
        dropped=changes.dropped,
        config=dict(changes.config),
        new_config=new_config((directory / CONFIG_FILE).read_bytes(), changes) if changes.config else None,
        new_weights=new_weights(examined.opened.header, changes) if has_new_weights else None,
        start=examined.opened.start,
    )


def _prepared(tensors: Iterable[Tensor], changes: Changes) -> Iterator[Tensor]:
    """The tensors that stand in the prepared file."""
    dropped = set(changes.dropped)
    for tensor in tensors:
        if tensor.name not in dropped:
            yield replace(tensor, name=changes.renamed.get(tensor.name, tensor.name))


def limit(memory_bytes: int, processor_seconds: int) -> None:
    """Bounds what this process may use from now on. It can neither write a file nor leave a core."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + processor_seconds
    for kind, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _end_with(descriptor: int) -> None:
    """Ends this process, whatever it does, when the other end of a pipe is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)  # only that it was hung up, which is told unasked
    poll.poll()
    os._exit(0)


def _frame(file: BinaryIO) -> bytes | None:
    """The next one; None: there are no more."""
    start = file.read(LENGTH.size)
    return file.read(LENGTH.unpack(start)[0]) if len(start) == LENGTH.size else None


def main() -> None:
    """Answers requests until whoever sends them has ended, or until a limit ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; whoever started this decides
    threading.Thread(target=_end_with, args=(sys.stdin.fileno(),), daemon=True).start()
    examining = Examining()
    import_module("numpy")  # what reads the numbers is there before the first adapter comes
    while (content := _frame(sys.stdin.buffer)) is not None:
        try:
            request = ExaminationRequest.model_validate_json(content)
            limit(request.memory_bytes, request.processor_seconds)
            answer = examining.answer(request).model_dump_json().encode()
        except MemoryError:
            os._exit(EXIT_NO_MEMORY)
        sys.stdout.buffer.write(LENGTH.pack(len(answer)) + answer)
        sys.stdout.buffer.flush()

"""The file of contexts as commands read and write it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from registry.cli.failure import refused, usage
from registry.client.contexts import AdminContext, SavedContexts, read_contexts
from registry.model.errors import FailedPrecondition, InvalidArgument
from registry.runtime.own_paths import write_whole


@dataclass(frozen=True, slots=True)
class ContextFile(SavedContexts):
    """All contexts, and the file that they are kept in."""

    path: Path = field(kw_only=True)

    def with_context(self, name: str, one: AdminContext) -> ContextFile:
        """The same with that context, which is the current one if it is the first."""
        return replace(self, contexts={**self.contexts, name: one}, current=self.current or name)

    def without(self, name: str) -> ContextFile:
        """The same without that context."""
        left = {key: one for key, one in self.contexts.items() if key != name}
        return replace(self, contexts=left, current="" if self.current == name else self.current)

    def save(self) -> None:
        """Writes the file, whole or not at all, for nobody else to read. Raises CliError where that cannot be."""
        value = {"current": self.current, "contexts": {key: asdict(one) for key, one in sorted(self.contexts.items())}}
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self.path, (json.dumps(value, indent=2) + "\n").encode())
        except OSError as error:
            raise usage(f"cannot write {self.path}: {error.strerror}") from error


def load_contexts(path: Path) -> ContextFile:
    """The file as it is; without contexts where there is none.

    Raises:
        CliError: it is not ours alone, or not of this form.
    """
    with as_command():
        saved = read_contexts(path)
    return ContextFile(saved.current, saved.contexts, path=path)


@contextmanager
def as_command() -> Iterator[None]:
    """Raises what is wrong with contexts as a command tells it."""
    try:
        yield
    except InvalidArgument as error:
        raise usage(error.message) from error
    except FailedPrecondition as error:
        raise refused(error.reason, error.message) from error

"""Contexts: admin services by name, with credentials, pool and protection.

They stand in a file of the user's own, which nobody else may write: it says whom commands talk to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from registry.cli.failure import refused, usage
from registry.model.errors import Reason
from registry.tools.devstack.stack_file import FolderNotTrusted, check_own_path

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AdminContext:
    """An admin service as a context names it. Empty texts: not said. `protected`: what removes is asked about."""

    admin: str
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    token_file: str = ""
    token_command: str = ""
    pool: str = ""
    protected: bool = False


@dataclass(frozen=True, slots=True)
class ContextFile:
    """All contexts by their names. `current` is used where none is named; empty: none is."""

    path: Path
    current: str = ""
    contexts: Mapping[str, AdminContext] = field(default_factory=dict)

    def named(self, name: str) -> AdminContext:
        """The context of that name.

        Raises:
            CliError: there is none.
        """
        if name not in self.contexts:
            known = f"known: {', '.join(sorted(self.contexts))}" if self.contexts else "there is none yet"
            raise usage(f"there is no context {name!r} ({known}); make one with: loraplane config set-context")
        return self.contexts[name]

    def with_context(self, name: str, one: AdminContext) -> ContextFile:
        """The same with that context, which is the current one if it is the first."""
        return replace(self, contexts={**self.contexts, name: one}, current=self.current or name)

    def without(self, name: str) -> ContextFile:
        """The same without that context."""
        left = {key: one for key, one in self.contexts.items() if key != name}
        return replace(self, contexts=left, current="" if self.current == name else self.current)

    def save(self) -> None:
        """Writes the file, whole or not at all, for nobody else to read. Raises CliError where that cannot be."""
        written = self.path.with_name(f"{self.path.name}.new")
        value = {"current": self.current, "contexts": {key: asdict(one) for key, one in sorted(self.contexts.items())}}
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            written.unlink(missing_ok=True)
            descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps(value, indent=2) + "\n")
            written.replace(self.path)
        except OSError as error:
            raise usage(f"cannot write {self.path}: {error.strerror}") from error


def context_path() -> Path:
    """LORAPLANE_CONFIG, or else config.json of loraplane below the user's folder for configuration."""
    if named := os.environ.get("LORAPLANE_CONFIG"):
        return Path(named)
    folder = os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    return Path(folder, "loraplane", "config.json")


def load_contexts(path: Path) -> ContextFile:
    """The file as it is; without contexts where there is none.

    Raises:
        CliError: it is not ours alone, or not of this form.
    """
    if not os.path.lexists(path):
        return ContextFile(path)
    try:
        for one in (path.parent, path):
            check_own_path(one)
    except FolderNotTrusted as error:
        raise refused(Reason.STACK_NOT_TRUSTED, f"{error}; it says whom commands talk to") from error
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_MAX_BYTES))
        contexts = {str(name): _context(one) for name, one in value["contexts"].items()}
        return ContextFile(path, str(value["current"]), contexts)
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise usage(f"{path} has not the form of loraplane config; mend or remove it ({error!r})") from error


def _context(value: Mapping[str, object]) -> AdminContext:
    """A context. What is unknown is refused: protection that was mistyped must not be passed over."""
    one = AdminContext(**value)  # type: ignore[arg-type] # the types are looked at below
    wrong = [each.name for each in fields(one) if type(getattr(one, each.name)).__name__ != each.type]
    if wrong:
        raise ValueError(f"{wrong[0]} has another type")
    return one

"""A deliberate bug as a file: a header of four or five fields, an empty line, a unified diff."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "mutants"
_REQUIRED = ("Name", "Breaks", "Guarantee", "Drawn-From")
_TOUCHED = re.compile(r"^\+\+\+ b/(\S+)$", re.MULTILINE)
_FIELD = re.compile(r"([A-Z][A-Za-z-]*): (\S.*)")
# What stands around a change may move a little without the patch having to be made anew.
_APPLY = ("git", "apply", "-C1")


class PatchMalformed(ValueError):
    """A patch is not of the form that it should have, or does not fit the code any more; the message says why."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One deliberate bug.

    Attributes:
        name: that of the file, too.
        breaks: what goes wrong with it, in one sentence.
        guarantees: ids of what it breaks.
        tests: paths of slow tests that are run if no cheap one fails.
        touches: files of the code that it changes.
        patch: the file.
    """

    name: str
    breaks: str
    guarantees: tuple[str, ...]
    tests: tuple[str, ...]
    touches: tuple[str, ...]
    patch: Path

    def apply(self, tree: Path) -> None:
        """Puts the bug into a copy of the code.

        Raises:
            PatchMalformed: it does not fit.
        """
        _git(self, tree)

    def check(self, tree: Path) -> None:
        """As `apply`, but changes nothing."""
        _git(self, tree, "--check")


def _git(mutant: Mutant, tree: Path, *flags: str) -> None:
    command = [*_APPLY, *flags, str(mutant.patch.resolve())]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PatchMalformed(f"{mutant.name} does not apply any more, make it anew: {done.stderr.strip()}")


def read_mutant(patch: Path) -> Mutant:
    """Reads the header of a patch.

    Raises:
        PatchMalformed: a field is missing, stands twice, or is not known; or there is no diff.
    """
    header, _, diff = patch.read_text().partition("\n\n")
    fields = _fields(patch.name, header)
    if not diff.startswith("--- a/"):
        raise PatchMalformed(f"{patch.name}: expected an empty line and a unified diff after the header")
    if fields["Name"] != patch.stem:
        raise PatchMalformed(f"{patch.name}: its Name is {fields['Name']!r}, expected that of the file")
    return Mutant(
        name=fields["Name"],
        breaks=fields["Breaks"],
        guarantees=tuple(fields["Guarantee"].split(", ")),
        tests=tuple(fields.get("Tests", "").split()),
        touches=tuple(_TOUCHED.findall(diff)),
        patch=patch,
    )


def _fields(name: str, header: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in header.splitlines():
        found = _FIELD.fullmatch(line)
        if found is None or found[1] not in (*_REQUIRED, "Tests") or found[1] in fields:
            raise PatchMalformed(f"{name}: the line {line[:80]!r} is no field of the header, or stands twice")
        fields[found[1]] = found[2]
    if missing := [field for field in _REQUIRED if field not in fields]:
        raise PatchMalformed(f"{name}: the header lacks {', '.join(missing)}")
    return fields


def read_mutants() -> list[Mutant]:
    """All patches, in the order of their names. Raises PatchMalformed."""
    return [read_mutant(patch) for patch in sorted(FOLDER.glob("*.patch"))]

"""Folders of adapters, by what is read of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from registry.formats.addresses import SourceLeavesTree, check_within
from registry.model.errors import InvalidArgument, Reason

CONFIG, META = "adapter_config.json", "nmp_adapter_meta.json"
# Of the files that are read beside an adapter's weights.
_TAKEN = ("base_model_name_or_path", "fileset", "updated_at")


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """A folder with an adapter: its path below the root, and the texts of its two small files; None: not read."""

    path: str
    config: str | None = None
    meta: str | None = None


def paths_of(text: str, place: str) -> list[AdapterFolder]:
    """Folders by a list of the paths of their adapter_config.json, a line each.

    Raises:
        InvalidArgument: a path leads out of the tree, or there is none.
    """
    found = [line.strip().removeprefix("./") for line in text.splitlines() if line.strip()]
    folders = [str(PurePosixPath(one).parent) if one.endswith(CONFIG) else one.rstrip("/") for one in found]
    if not folders:
        message = f"is empty; name a folder, or give the paths of {CONFIG} of each adapter, a line each"
        raise InvalidArgument(Reason.INVALID_MANIFEST, message, field=place)
    return [AdapterFolder(one) for one in folders]


def folders_document(root: str | None, folders: Iterable[AdapterFolder], place: str) -> dict[str, object]:
    """The folders as a document whose shape the table has. `root` None: their paths are those that replicas have.

    Raises:
        InvalidArgument: a path leads out of the tree, or a file is no JSON.
    """
    return {"adapters": [_entry(root, one, place) for one in folders]}


def _entry(root: str | None, one: AdapterFolder, place: str) -> dict[str, object]:
    where = f"{place}: {one.path}"
    try:
        check_within(one.path)
    except SourceLeavesTree as error:
        raise InvalidArgument(Reason.INVALID_MANIFEST, str(error), field=where) from error
    if root is not None and one.path.startswith("/"):
        message = f"the path leads out of {root}; name what is below it"
        raise InvalidArgument(Reason.INVALID_MANIFEST, message, field=where)
    said = {**_values(one.config, f"{where}/{CONFIG}"), **_values(one.meta, f"{where}/{META}")}
    name = PurePosixPath(one.path).name
    folder = one.path if root is None else f"{root.rstrip('/')}/{one.path}"
    taken = {key: said[key] for key in _TAKEN if said.get(key) is not None}
    return {"name": name, **({"folder": folder} if folder.startswith("/") else {}), **taken}


def _values(text: str | None, where: str) -> dict[str, object]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = "is no JSON; write it anew, or take its folder away"
        raise InvalidArgument(Reason.INVALID_MANIFEST, message, field=where) from error
    return value if isinstance(value, dict) else {}

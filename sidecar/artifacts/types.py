"""The terms between the planner and the artifact store. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from registry.lora.coverage.scales import ScaleSource
from registry.lora.engine_base import UNKNOWN_BASE, EngineBase
from registry.lora.findings import AdapterWarning
from registry.model.records import PoolSpec


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """Content that a record asks for; equal refs may share one directory.

    `digest` is the pinned manifest digest. Where it is None the source is read once for each `pin_key`, and what was
    found then stays what that ref means on this host: `pin_key` is ``<pool>/<name key>@<generation>``, empty if pinned.
    `prepare` is the record's policy as JSON. `base_model` is what the record says of the base; the adapter's own
    configuration decides, and where the two disagree it is said. `signature` is over the digest of what is found.
    `name` is the adapter's, which a bundle may bind.
    `expect` is what an engine has to answer with it, as `sidecar.vllm_plugin.protocol.write_expected` gives it.
    """

    uri: str
    digest: str | None
    prepare: str = ""
    credentials: str | None = None
    pin_key: str = ""
    base_model: str | None = None
    signature: str | None = None
    expect: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Staged:
    """An artifact in the store: its id, the absolute path of its directory, the digest of its source.

    `rank` is its highest LoRA rank, `modules` are the names of its modules with ``{0-31}`` for numbers that run
    through, and `scales` say what theirs follow from: all for an engine's limits.
    Unless it `is_proven` to be what its record names, no engine is given it; `ensure` proves it.
    """

    id: str
    path: str
    digest: str
    rank: int
    warnings: tuple[AdapterWarning, ...] = ()
    modules: tuple[str, ...] = ()
    is_proven: bool = True
    scales: frozenset[ScaleSource] = frozenset()


class ArtifactStore(Protocol):
    """Store in which artifacts become directories. Safe to share between replicas and to kill at any point."""

    def lookup(self, ref: ArtifactRef) -> Staged | None:
        """The staged artifact if this process saw it in the store, whole, and leased to this replica.

        Answers from memory. It may say None for what is there: `recall` looks, and `ensure` settles it.
        """
        ...

    @property
    def seen(self) -> Mapping[ArtifactRef, Staged]:
        """Answers of `lookup` from memory, by ref, as it is now. Touches no file."""
        ...

    async def recall(self, refs: Collection[ArtifactRef]) -> bool:
        """Looks up refs that are not among `seen`, as after a restart; gives whether any is now.

        Files are read beside the event loop, and only of what is leased.
        """
        ...

    def is_intact(self, path: str) -> bool:
        """True if an engine may be given what stands at a path of this store: proven, and not touched since.

        False: `lookup` says so too from now on.
        """
        ...

    @property
    def troubles(self) -> Mapping[str, str]:
        """By path, what somebody did to files of this store that an engine may be reading, as last seen."""
        ...

    async def ensure(self, ref: ArtifactRef, refused: str | None = None) -> Staged:
        """Fetches, verifies and stages; what is there is only proven. One download per host at a time and ref.

        `refused`: see `Stage`.

        Raises:
            ArtifactError: it cannot be had; its reason tells whether it is worth repeating.
            SourceUnchanged: the source has the version that was refused.
        """
        ...

    @property
    def reads(self) -> str:
        """Digest of what this replica may read and trust: once that differs, what was refused may be allowed."""
        ...

    @property
    def not_taken(self) -> Mapping[str, str]:
        """By file of the operator's, why it is not taken as it is now: what it said before goes on."""
        ...

    @property
    def base_known(self) -> bool:
        """True if there is a base model that adapters are compared with."""
        ...

    def use_pool(self, pool: PoolSpec | None, engine: EngineBase = UNKNOWN_BASE) -> str:
        """Compares adapters with that pool's base model from now on, unless this replica was given one of its own.

        Returns why nothing may be loaded into an engine of that base model, in one sentence; empty: it may.
        """
        ...

    async def made_of(self, listed: Collection[tuple[ArtifactRef, str]]) -> Mapping[tuple[ArtifactRef, str], str]:
        """The digests of the sources that directories of this store were made of, for whatever base.

        Without those whose ref means another source, and those of which nothing is known.
        """
        ...

    def owns(self, path: str) -> str | None:
        """The artifact id if `path`, as an engine lists it, is a directory of this store; else None."""
        ...


GRACE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Bring an artifact into the store.

    `refused`: the version of the source whose files were refused, which are not fetched again; empty: that is not
    known; None: they were not refused.
    """

    name: str
    ref: ArtifactRef
    request_id: str
    refused: str | None = None

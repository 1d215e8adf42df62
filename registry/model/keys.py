"""Keys of etcd below one prefix. Pure.

docs/etcd-layout.md shows the same as a table.
"""

from __future__ import annotations

from dataclasses import dataclass

from registry.model.names import name_key

DEFAULT_PREFIX = "/loraplane/v1"


@dataclass(frozen=True, slots=True)
class Keys:
    """Builds every key. `prefix` has no slash at its end."""

    prefix: str = DEFAULT_PREFIX

    def _key(self, *parts: str) -> bytes:
        return "/".join((self.prefix, *parts)).encode()

    def records(self) -> tuple[bytes, ...]:
        """Prefixes of what desired state is made of."""
        return tuple(self._key(kind, "") for kind in ("pools", "adapters", "tenants"))

    def pool(self, pool: str) -> bytes:
        return self._key("pools", pool)

    def pools(self) -> bytes:
        return self._key("pools", "")

    def adapter(self, pool: str, name: str) -> bytes:
        return self._key("adapters", pool, name_key(name))

    def adapters(self, pool: str) -> bytes:
        return self._key("adapters", pool, "")

    def all_adapters(self) -> bytes:
        """Those of all pools."""
        return self._key("adapters", "")

    def history(self, pool: str, name: str, generation: int) -> bytes:
        return self._key("history", pool, name_key(name), str(generation))

    def history_of(self, pool: str, name: str) -> bytes:
        return self._key("history", pool, name_key(name), "")

    def history_in(self, pool: str) -> bytes:
        """Prefix of the history of all names of a pool."""
        return self._key("history", pool, "")

    def written_by_admin(self) -> tuple[bytes, ...]:
        """Prefixes of all that admin services write, but for the key `meta`."""
        kinds = ("adapters", "audit", "clock", "drains", "history", "left", "members", "pools", "requests", "tenants")
        return tuple(self._key(kind, "") for kind in kinds)

    def backed_up(self) -> tuple[bytes, ...]:
        """Prefixes of what a backup holds, in their order."""
        return tuple(self._key(kind, "") for kind in ("adapters", "history", "pools", "tenants"))

    def audited(self) -> tuple[bytes, ...]:
        """Prefixes of what records of the audit are about."""
        return (*self.backed_up(), self._key("drains", ""))

    def tenant(self, tenant: str) -> bytes:
        return self._key("tenants", tenant)

    def tenants(self) -> bytes:
        return self._key("tenants", "")

    def request(self, request_id: str, space: str = "") -> bytes:
        """`space` says whose id it is; "" is that of callers without a certificate, and of all callers before 0.2."""
        return self._key("requests", *((space,) if space else ()), request_id)

    def audit(self, scope: str, audit_id: str) -> bytes:
        """`scope` is a pool's name, or "_" for what belongs to no pool."""
        return self._key("audit", scope, audit_id)

    def audits(self) -> bytes:
        return self._key("audit", "")

    def denied(self, audit_id: str = "") -> bytes:
        """Key of the record of a refusal; without an id the prefix of all of them."""
        return self._key("audit", "_", "denied", audit_id)

    def audited_pool(self, key: bytes) -> str:
        """Pool of an audit record by its key; empty: it is of none."""
        scope, *rest = key.decode(errors="backslashreplace").removeprefix(f"{self.prefix}/audit/").split("/")
        return scope if len(rest) == 1 and scope != "_" else ""

    def replica(self, pool: str, replica: str) -> bytes:
        return self._key("replicas", pool, replica)

    def replicas(self, pool: str) -> bytes:
        return self._key("replicas", pool, "")

    def all_replicas(self) -> bytes:
        """Those of all pools."""
        return self._key("replicas", "")

    def members(self, pool: str) -> bytes:
        """Key of the replicas that lived in a pool within the last day."""
        return self._key("members", pool)

    def all_members(self) -> bytes:
        """Those of all pools."""
        return self._key("members", "")

    def left(self, pool: str, replica: str) -> bytes:
        """Key of the note that a replica's sidecar ended in order."""
        return self._key("left", pool, replica)

    def all_left(self) -> bytes:
        """Those of all pools."""
        return self._key("left", "")

    def status(self, pool: str, replica: str) -> bytes:
        return self._key("status", pool, replica)

    def statuses(self, pool: str) -> bytes:
        return self._key("status", pool, "")

    def drain(self, pool: str, replica: str) -> bytes:
        return self._key("drains", pool, replica)

    def expiry_clock(self) -> bytes:
        """Key of the clock by which adapters end."""
        return self._key("clock", "expiry")

    def meta(self) -> bytes:
        return self._key("meta")


def is_adapter_key(key: bytes, pool: str) -> bool:
    """True for the key of an adapter of a pool, of those below its prefix.

    What stands further down, as under a name that somebody wrote with its "/", is none: its last part may be another's.
    """
    return key.rpartition(b"/")[0].endswith(f"/adapters/{pool}".encode())


def last_part(key: bytes) -> str:
    """The part of a key after its last slash, e.g. the name key of an adapter's key."""
    return key.rsplit(b"/", 1)[-1].decode(errors="backslashreplace")

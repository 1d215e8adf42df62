"""Where things stand in etcd."""

from __future__ import annotations

from registry.model.keys import DEFAULT_PREFIX, Keys, last_part

KEYS = Keys()
EXPECTED = {
    KEYS.pool("p"): "pools/p",
    KEYS.pools(): "pools/",
    KEYS.adapter("p", "Acme/SQL"): "adapters/p/acme%2Fsql",
    KEYS.adapters("p"): "adapters/p/",
    KEYS.history("p", "Acme/SQL", 7): "history/p/acme%2Fsql/7",
    KEYS.history_of("p", "Acme/SQL"): "history/p/acme%2Fsql/",
    KEYS.history_in("p"): "history/p/",
    KEYS.tenant("acme"): "tenants/acme",
    KEYS.tenants(): "tenants/",
    KEYS.request("r"): "requests/r",
    KEYS.request("r", "operator:a"): "requests/operator:a/r",
    KEYS.audit("p", "i"): "audit/p/i",
    KEYS.audits(): "audit/",
    KEYS.denied(): "audit/_/denied/",
    KEYS.denied("i"): "audit/_/denied/i",
    KEYS.replica("p", "r"): "replicas/p/r",
    KEYS.replicas("p"): "replicas/p/",
    KEYS.all_replicas(): "replicas/",
    KEYS.members("p"): "members/p",
    KEYS.all_members(): "members/",
    KEYS.left("p", "r"): "left/p/r",
    KEYS.all_left(): "left/",
    KEYS.drain("p", "r"): "drains/p/r",
    KEYS.status("p", "r"): "status/p/r",
    KEYS.statuses("p"): "status/p/",
    KEYS.expiry_clock(): "clock/expiry",
    KEYS.meta(): "meta",
}


def test_layout():
    """The layout is a contract between releases: it changes only with a new prefix."""
    assert [key.decode() for key in EXPECTED] == [f"{DEFAULT_PREFIX}/{path}" for path in EXPECTED.values()]


def test_what_a_backup_has():
    """What is declared: no presence, status, request or audit record."""
    assert [last_part(prefix[:-1]) for prefix in KEYS.backed_up()] == ["adapters", "history", "pools", "tenants"]
    audited = [last_part(prefix[:-1]) for prefix in KEYS.audited()]
    assert audited == ["adapters", "history", "pools", "tenants", "drains"], "changes of these alone leave a record"
    assert KEYS.tenants() in KEYS.backed_up()


def test_what_admin_services_write():
    """All kinds of keys but `meta` and what sidecars say of themselves."""
    kinds = {path.partition("/")[0] for path in EXPECTED.values()} - {"meta", "replicas", "status"}
    assert {last_part(prefix[:-1]) for prefix in KEYS.written_by_admin()} == kinds


def test_the_key_of_an_audit_record_tells_its_pool():
    pools = {KEYS.audit("p", "i"): "p", KEYS.audit("_", "i"): "", KEYS.denied("i"): ""}
    assert {key: KEYS.audited_pool(key) for key in pools} == pools

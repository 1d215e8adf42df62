"""Which names there may be."""

from __future__ import annotations

import pytest

from registry.errors import InvalidArgument, Reason
from registry.model.names import (
    RESERVED_NAMES,
    check_adapter_name,
    check_not_base,
    check_request_id,
    check_segment,
    name_key,
    name_of_key,
    tenant_of,
)


@pytest.mark.parametrize("name", ["a", "A", "a1", "acme/sql", "acme/sql-v1.2_x", "a" * 96, "a" * 63 + "/" + "b" * 96])
def test_good_names(name):
    check_adapter_name(name)
    assert name_of_key(name_key(name)) == name.lower()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "a/",
        "/a",
        "a/b/c",
        "a b",
        "a,b",
        "a..b",
        ".a",
        "a.",
        "-a",
        "a-",
        "ä",
        "a\n",
        "a\0",
        "a%2Fb",
        "a" * 97,
        "a" * 96 + "/" + "b" * 96,
        "../x",
    ],
)
def test_bad_names(name):
    with pytest.raises(InvalidArgument) as told:
        check_adapter_name(name, field="f")
    assert (told.value.reason, told.value.field) == (Reason.INVALID_NAME, "f")


@pytest.mark.parametrize(
    "name", sorted(RESERVED_NAMES | {"IMAGE_URL", "Text", "LoraPlane-check-1", "loraplane-check-a/b"})
)
def test_reserved_names(name):
    """R4: nothing stands in for what a sidecar proves loadable."""
    with pytest.raises(InvalidArgument):
        check_adapter_name(name)


def test_base_models():
    """R5 no-silent-base: an adapter is not named like the base, without regard to case."""
    check_not_base("a", ["b"])
    with pytest.raises(InvalidArgument) as told:
        check_not_base("Qwen", ["x", "qwen"])
    assert told.value.reason is Reason.NAME_IS_BASE_MODEL


@pytest.mark.parametrize("name", ["", "a/b", "a..b", "_", "a ", "a" * 97])
def test_bad_segments(name):
    check_segment("a.B-1_x", field="f")
    with pytest.raises(InvalidArgument):
        check_segment(name, field="f")


@pytest.mark.parametrize("request_id", ["", "a b", "a/b", "ä", "a" * 129, "a\n"])
def test_bad_request_ids(request_id):
    check_request_id("0Az._:-")
    with pytest.raises(InvalidArgument):
        check_request_id(request_id)


def test_tenants():
    assert [tenant_of(name) for name in ("a", "Acme/x", "acme/x")] == ["default", "acme", "acme"]

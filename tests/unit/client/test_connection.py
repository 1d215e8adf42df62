"""Where the client is told to connect to."""

from __future__ import annotations

import pytest

from loraplane import Registry
from registry.model.errors import InvalidArgument


@pytest.mark.parametrize("address", ["admin", "http://admin:7600"])
def test_an_address_that_is_none_is_refused_at_once(address):
    with pytest.raises(InvalidArgument, match="is not HOST:PORT") as refused:
        Registry(address)
    assert refused.value.field == "address"

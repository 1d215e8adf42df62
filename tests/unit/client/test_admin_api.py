"""The table of the admin API, compared with the service as it is generated."""

from __future__ import annotations

from registry.client import admin_api
from registry.client.admin_api import AdminMethod
from registry.v1 import registry_pb2 as pb


def test_each_method_has_the_types_that_the_service_gives_it():
    """What is sent to a method of another type would be read as something else, and nobody refuse it."""
    here = [one for one in vars(admin_api).values() if isinstance(one, AdminMethod)]
    service = pb.DESCRIPTOR.services_by_name["AdapterRegistry"].methods_by_name
    assert len({one.name for one in here}) == len(here) > 20
    for one in here:
        types = (one.request.DESCRIPTOR, one.reply.DESCRIPTOR)
        assert types == (service[one.name].input_type, service[one.name].output_type), one.name

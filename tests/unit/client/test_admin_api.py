"""The table of the admin API, compared with the service as it is generated."""

from __future__ import annotations

from registry.client import admin_api
from registry.client.admin_api import AdminMethod
from registry.v1 import registry_pb2 as pb


def test_each_method_is_there_once_with_the_types_that_it_has():
    """What is sent to a method of another type would be read as something else, and nobody refuse it."""
    here = [one for one in vars(admin_api).values() if isinstance(one, AdminMethod)]
    told = [(one.name, one.request.DESCRIPTOR, one.reply.DESCRIPTOR) for one in here]
    service = pb.DESCRIPTOR.services_by_name["AdapterRegistry"].methods
    assert sorted(told, key=lambda one: one[0]) == sorted(
        ((one.name, one.input_type, one.output_type) for one in service), key=lambda one: one[0]
    )

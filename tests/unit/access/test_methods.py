"""Verb and resource of each method, as the .proto has them."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from registry.access.methods import METHODS, actions_of
from registry.access.questions import Resource, Verb
from registry.v1 import registry_pb2 as pb


def methods_with(option: bytes):
    """A service of one method, ``Act``, with these options as they stand in a file."""
    file = descriptor_pb2.FileDescriptorProto(name="one.proto", package="one", syntax="proto3")
    file.message_type.add(name="Nothing")
    method = file.service.add(name="Service").method.add(
        name="Act", input_type=".one.Nothing", output_type=".one.Nothing"
    )
    method.options.MergeFromString(option)
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindServiceByName("one.Service").methods


def rule(verb: str, resource: str) -> bytes:
    options = descriptor_pb2.MethodOptions()
    options.Extensions[pb.access].CopyFrom(pb.AccessRule(verb=verb, resource=resource))
    return options.SerializeToString()


def test_a_method_says_what_it_does():
    """A1 named: the .proto is the one place for it."""
    assert actions_of(methods_with(rule("apply", "adapters"))) == {"Act": (Verb.APPLY, Resource.ADAPTERS)}
    assert METHODS["DrainReplica"] == (Verb.DRAIN, Resource.REPLICAS)


@pytest.mark.parametrize(
    "option", [b"", rule("", ""), rule("apply", ""), rule("please", "adapters"), rule("get", "all")]
)
def test_a_method_without_a_verb_and_a_resource_keeps_the_service_from_starting(option):
    """A1 named: none is left open."""
    with pytest.raises(ValueError, match=r"the method Act needs the option \(access\), with a verb and a resource"):
        actions_of(methods_with(option))

"""Decisions as Envoy is told them."""

from __future__ import annotations

import json

import pytest

from registry.picker import answers
from registry.picker import ext_proc_pb2 as ext
from registry.picker.decide import Chosen, Denied
from registry.picker.request_body import model_of
from registry.picker.served import PickEndpoint

CHOSEN = Chosen(PickEndpoint("10.0.0.1:8000", "r1"), "p")


def told(mutation: ext.HeaderMutation) -> dict[str, str]:
    assert {one.append_action for one in mutation.set_headers} == {ext.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD}
    return {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers}


def metadata(response: ext.ProcessingResponse) -> dict[str, object]:
    return dict(response.dynamic_metadata["envoy.lb"])


def test_the_endpoint_stands_in_header_and_metadata():
    response = answers.chosen_by_headers(CHOSEN, None)
    assert told(response.request_headers.response.header_mutation) == {answers.DESTINATION: "10.0.0.1:8000"}
    assert metadata(response) == {answers.DESTINATION: "10.0.0.1:8000"}
    scored = answers.chosen_by_body(CHOSEN, None, {"10.0.0.1:8000": 1.0, "10.0.0.2:8000": 0.5})
    assert dict(metadata(scored)[answers.SCORES]) == {"10.0.0.1:8000": 1.0, "10.0.0.2:8000": 0.5}
    assert not scored.request_body.response.HasField("body_mutation")


def test_a_new_body_has_its_length():
    asked = model_of(b'{"model": "sql"}')
    assert answers.new_body(CHOSEN, asked) is None
    assert answers.new_body(CHOSEN, None) is None
    renamed = Chosen(CHOSEN.endpoint, "p", "sql@3")
    assert answers.new_body(renamed, None) is None
    body = answers.new_body(renamed, asked)
    common = answers.chosen_by_body(CHOSEN, body, None).request_body.response
    assert (common.body_mutation.body, told(common.header_mutation)["content-length"]) == (b'{"model": "sql@3"}', "18")


@pytest.mark.parametrize("size", [0, 1, 62 * 1024, 62 * 1024 + 1, 200_000])
def test_a_streamed_body_comes_back_whole_and_in_parts_that_envoy_takes(size):
    first, *parts = answers.chosen_by_stream(CHOSEN, b"x" * size, None)
    assert told(first.request_headers.response.header_mutation)["content-length"] == str(size)
    streamed = [one.request_body.response.body_mutation.streamed_response for one in parts]
    assert b"".join(one.body for one in streamed) == b"x" * size
    assert [one.end_of_stream for one in streamed] == [False] * (len(parts) - 1) + [True]
    assert max(len(one.body) for one in streamed) <= 64 * 1024
    response = answers.streamed(b"y", end_of_stream=True, of_request=False).response_body.response
    assert response.body_mutation.streamed_response.body == b"y"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, "invalid_request_error"), (500, "service_unavailable_error"), (503, "service_unavailable_error")],
)
def test_a_refusal_has_the_form_of_openais_api(status, kind):
    response = answers.denied(Denied(status, "code", "why", 0 if status == 404 else 2)).immediate_response
    error = {"message": "why", "type": kind, "param": "model", "code": "code"}
    assert (response.status.code, json.loads(response.body)) == (status, {"error": error})
    headers = {"content-type": "application/json", **({} if status == 404 else {"retry-after": "2"})}
    assert told(response.headers) == headers


@pytest.mark.parametrize(
    "kind", ["response_headers", "response_body", "request_body", "response_trailers", "request_trailers"]
)
def test_what_is_none_of_its_business_goes_on(kind):
    request = ext.ProcessingRequest()
    getattr(request, kind).SetInParent()
    assert answers.unchanged(request).WhichOneof("response") == kind


def test_headers_are_read_in_both_forms_and_the_first_counts():
    headers = ext.HttpHeaders()
    for key, value, raw in (
        (":method", "", b"1"),
        ("content-length", "2", b""),
        (":method", "3", b""),
        ("a", "4", b""),
    ):
        headers.headers.headers.add(key=key, value=value, raw_value=raw)
    assert answers.headers_of(headers) == {":method": "1", "content-length": "2"}


def test_a_subset_is_a_list_or_a_text():
    request = ext.ProcessingRequest()
    assert answers.subset_of(request) is None
    hint = request.metadata_context.filter_metadata[answers.SUBSET_NAMESPACE]
    assert answers.subset_of(request) is None
    hint[answers.SUBSET] = ["a:1", "b:2"]
    assert answers.subset_of(request) == {"a:1", "b:2"}
    hint[answers.SUBSET] = "a:1, c:3,"
    assert answers.subset_of(request) == {"a:1", "c:3"}
    hint[answers.SUBSET] = []
    assert answers.subset_of(request) == frozenset()

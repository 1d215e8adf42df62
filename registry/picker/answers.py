"""Decisions as messages of Envoy's external processing. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from registry.picker import ext_proc_pb2 as ext
from registry.picker.decide import Chosen, Denied
from registry.picker.request_body import RequestedModel

DESTINATION = "x-gateway-destination-endpoint"
SCORES = "x-gateway-destination-endpoint-scores"
SUBSET_NAMESPACE, SUBSET = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"
LEAST_REVISION = "x-loraplane-min-revision"
_READ = frozenset({LEAST_REVISION, ":method", "content-length"})
_NAMESPACE = "envoy.lb"
_OVERWRITE = ext.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
# Of what Envoy is sent at once of a body that is streamed.
_CHUNK_BYTES = 62 * 1024
CONTINUE = ext.ProcessingResponse(request_headers=ext.HeadersResponse())


def _header(name: str, value: str) -> ext.HeaderValueOption:
    return ext.HeaderValueOption(header=ext.HeaderValue(key=name, raw_value=value.encode()), append_action=_OVERWRITE)


def _mutation(chosen: Chosen, body: bytes | None) -> ext.HeaderMutation:
    headers = [_header(DESTINATION, chosen.endpoint.address)]
    if body is not None:
        headers.append(_header("content-length", str(len(body))))
    return ext.HeaderMutation(set_headers=headers)


def _tell(response: ext.ProcessingResponse, chosen: Chosen, scores: Mapping[str, float] | None) -> None:
    fields = response.dynamic_metadata.fields[_NAMESPACE].struct_value.fields
    fields[DESTINATION].string_value = chosen.endpoint.address
    if scores is not None:
        of_each = fields[SCORES].struct_value.fields
        for address, score in scores.items():
            of_each[address].number_value = score


def new_body(chosen: Chosen, asked: RequestedModel | None) -> bytes | None:
    """The body with the model that the engine knows; None: it stays as it is."""
    return asked.renamed(chosen.model) if asked is not None and chosen.model else None


def chosen_by_headers(
    chosen: Chosen, scores: Mapping[str, float] | None, body: bytes | None = None
) -> ext.ProcessingResponse:
    """The answer to the headers of a request; `body` None: it has none."""
    common = ext.CommonResponse(header_mutation=_mutation(chosen, body), clear_route_cache=True)
    response = ext.ProcessingResponse(request_headers=ext.HeadersResponse(response=common))
    _tell(response, chosen, scores)
    return response


def chosen_by_body(chosen: Chosen, body: bytes | None, scores: Mapping[str, float] | None) -> ext.ProcessingResponse:
    """The answer to a body that the gateway keeps back; `body` None: it stays as it is."""
    mutation = None if body is None else ext.BodyMutation(body=body)
    common = ext.CommonResponse(header_mutation=_mutation(chosen, body), body_mutation=mutation, clear_route_cache=True)
    response = ext.ProcessingResponse(request_body=ext.BodyResponse(response=common))
    _tell(response, chosen, scores)
    return response


def chosen_by_stream(
    chosen: Chosen, body: bytes, scores: Mapping[str, float] | None
) -> Iterator[ext.ProcessingResponse]:
    """The answers to a body that the gateway streams, which come back whole: the headers first."""
    yield chosen_by_headers(chosen, scores, body)
    for start in range(0, max(1, len(body)), _CHUNK_BYTES):
        chunk = body[start : start + _CHUNK_BYTES]
        yield streamed(chunk, end_of_stream=start + _CHUNK_BYTES >= len(body), of_request=True)


def streamed(body: bytes, *, end_of_stream: bool, of_request: bool) -> ext.ProcessingResponse:
    """A part of a streamed body."""
    part = ext.StreamedBodyResponse(body=body, end_of_stream=end_of_stream)
    answer = ext.BodyResponse(response=ext.CommonResponse(body_mutation=ext.BodyMutation(streamed_response=part)))
    return ext.ProcessingResponse(request_body=answer) if of_request else ext.ProcessingResponse(response_body=answer)


def denied(refusal: Denied) -> ext.ProcessingResponse:
    """A refusal in the form of OpenAI's API, which the gateway sends instead of asking an engine."""
    kind = "invalid_request_error" if refusal.status < 500 else "service_unavailable_error"
    told = {"message": refusal.message, "type": kind, "param": "model", "code": refusal.code}
    headers = [_header("content-type", "application/json")]
    if refusal.retry_seconds:
        headers.append(_header("retry-after", str(refusal.retry_seconds)))
    return ext.ProcessingResponse(
        immediate_response=ext.ImmediateResponse(
            status=ext.HttpStatus(code=refusal.status),
            headers=ext.HeaderMutation(set_headers=headers),
            body=json.dumps({"error": told}).encode(),
            details=refusal.code,
        )
    )


def unchanged(request: ext.ProcessingRequest) -> ext.ProcessingResponse:
    """The answer to what is none of the picker's business: it goes on as it is."""
    response = ext.ProcessingResponse()
    # Each part of a request has the name of what answers it.
    getattr(response, request.WhichOneof("request") or "request_trailers").SetInParent()
    return response


def headers_of(headers: ext.HttpHeaders) -> dict[str, str]:
    """The headers of a request that the picker reads, of each the first."""
    found: dict[str, str] = {}
    for one in headers.headers.headers:
        if (key := one.key) in _READ and key not in found:
            found[key] = one.raw_value.decode(errors="replace") or one.value
    return found


def subset_of(request: ext.ProcessingRequest) -> frozenset[str] | None:
    """The addresses that the gateway allows; None: it does not say."""
    fields = request.metadata_context.filter_metadata[SUBSET_NAMESPACE].fields
    if SUBSET not in fields:
        return None
    value = fields[SUBSET]
    if value.WhichOneof("kind") == "list_value":
        return frozenset(one.string_value for one in value.list_value.values)
    return frozenset(part.strip() for part in value.string_value.split(",") if part.strip())

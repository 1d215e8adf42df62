"""Whether a spec's source is of a form that sidecars read; whether it may be read is for each sidecar to say."""

from __future__ import annotations

from registry.errors import InvalidArgument, Reason
from registry.model.records import AdapterSpec
from registry.model.source_uri import SourceUriError, parse_source, scheme_of

_FILE_REMEDY = "write file:///absolute/path, without a query or fragment (? is %3F, # is %23)"


def check_source(spec: AdapterSpec, *, field: str) -> None:
    """Raises InvalidArgument unless sidecars can read the form of the source's URI. Repeats nothing that is secret."""
    uri_field = f"{field}.source.uri"
    try:
        scheme = scheme_of(spec.source.uri)
    except SourceUriError as error:
        raise InvalidArgument(Reason.UNSUPPORTED, str(error), field=uri_field) from None
    try:
        _check_form(scheme, spec.source.uri)
    except SourceUriError as error:
        raise InvalidArgument(Reason.INVALID_FIELD, str(error), field=uri_field) from None
    if spec.credentials is not None and scheme == "file":
        message = "a file:// source takes no credential; leave it out"
        raise InvalidArgument(Reason.UNSUPPORTED, message, field=f"{field}.credentials")


def _check_form(scheme: str, uri: str) -> None:
    if scheme != "file":
        parse_source(uri)
    elif not uri.startswith("file:///") or "?" in uri or "#" in uri:
        raise SourceUriError(_FILE_REMEDY)

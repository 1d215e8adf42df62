"""Google's and Azure's object stores, as far as they are used: ranges of objects, and the creation of new ones.

What is answered is what their documentation says of the requests that arrive:

- Google, XML API, "PUT Object" and "Request preconditions" (cloud.google.com/storage/docs/xml-api/put-object-upload,
  …/docs/request-preconditions): a PUT replaces what is there, unless ``x-goog-if-generation-match: 0`` asks that
  nothing be; then 412. What is stored has an ETag and ``x-goog-generation``.
- Azure, "Put Blob" and "Specifying conditional headers" (learn.microsoft.com/rest/api/storageservices/put-blob):
  ``x-ms-blob-type`` and Content-Length are required; a PUT replaces what is there, unless ``If-None-Match: *`` asks
  that nothing be; then 409 BlobAlreadyExists. 201 for what is stored.
- Both: 404 for a bucket or container that is not there, 401 or 403 for who may not; an object that did not arrive whole
  is not stored.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.support.web import Answer, Exchange, Site

ACCOUNT = "acme"
KEY = base64.b64encode(b"keyCANARY" * 4).decode()
WHEN = "Mon, 05 Jan 2026 00:00:00 GMT"
_MUTEX = threading.Lock()
_SIGNED_HEADERS = (
    "content-encoding content-language content-length content-md5 content-type date if-modified-since if-match "
    "if-none-match if-unmodified-since range"
).split()


@dataclass(frozen=True)
class Request:
    """What a signature is over; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Cloud:
    """A cloud with one kind of secret: what is kept in the file, and whether a request shows that it was used."""

    name: str
    scheme: str
    make_secret: Callable[[], str]
    is_signed: Callable[[Request], bool]

    @property
    def secret(self) -> str:
        return self.make_secret()

    def entry(self, site: Site, bucket: str, path: object) -> dict[str, Any]:
        """The credential whose secret is in the file at `path`, and whose store is at our server."""
        store = {"endpoint": site.url, "account": ACCOUNT}
        return {"kind": "file", "path": str(path), "prefixes": [f"{self.scheme}://{bucket}"], "store": store}


@cache
def _service_key() -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


def _service_account() -> str:
    pem = _service_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    fields = {"type": "service_account", "client_email": "loraplane@acme.example", "private_key_id": "keyCANARY"}
    return json.dumps(fields | {"private_key": pem})


def _bearer(request: Request) -> bool:
    return request.headers.get("authorization") == "Bearer tokenCANARY"


def _signed_token(request: Request) -> bool:
    """A token that a service account made for itself (google.aip.dev/auth/4111)."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    text, _, signature = token.rpartition(".")
    if kind != "Bearer" or text.count(".") != 1:
        return False
    try:
        _service_key().public_key().verify(_unpadded(signature), text.encode(), PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    head, claims = (json.loads(_unpadded(part)) for part in text.split("."))
    is_ours = claims["iss"] == claims["sub"] == "loraplane@acme.example" and claims["iat"] < claims["exp"]
    return is_ours and (head["alg"], head["kid"]) == ("RS256", "keyCANARY") and "scope" in claims


def _unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _shared_key(request: Request) -> bool:
    """Azure's signature over the request, made anew as "Authorize with Shared Key" says."""
    lines = {name: value for name, value in request.headers.items() if name.startswith("x-ms-")}
    canonical = "".join(f"{name}:{lines[name]}\n" for name in sorted(lines))
    values = [request.headers.get(name, "") for name in _SIGNED_HEADERS]
    values[2] = "" if values[2] == "0" else values[2]
    text = "\n".join([request.method, *values, f"{canonical}/{ACCOUNT}{request.path}"])
    made = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    return request.headers.get("authorization") == f"SharedKey {ACCOUNT}:{made}"


def _sas(request: Request) -> bool:
    signatures = parse_qs(urlsplit(request.path).query).get("sig")
    return signatures == ["sasCANARY"] and "authorization" not in request.headers


CLOUDS = (
    Cloud("gs_token", "gs", lambda: '{"token": "tokenCANARY"}', _bearer),
    Cloud("az_token", "az", lambda: '{"token": "tokenCANARY"}', _bearer),
    Cloud("gs_service_account", "gs", _service_account, _signed_token),
    Cloud("az_key", "az", lambda: json.dumps({"account_key": KEY}), _shared_key),
    Cloud("az_sas", "az", lambda: '{"sas_token": "sv=2024-11-04&sig=sasCANARY"}', _sas),
)
ONE_OF_EACH = CLOUDS[:2]


def plain(path: str) -> str:
    """A path without its query, where a shared access signature stands, and without the escapes of Google's client."""
    return unquote(path.partition("?")[0])


class ByPath(dict[str, Answer]):
    """Answers by plain paths; `otherwise` is that of all others."""

    def __init__(self, otherwise: Answer | None = None) -> None:
        super().__init__()
        self._otherwise = otherwise

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(plain(key), default or self._otherwise)


def guarded(cloud: Cloud, answer: Answer) -> Answer:
    """An answer that only who signs is given."""

    def check(exchange: Exchange) -> None:
        headers = {name.lower(): value for name, value in exchange.headers.items()}
        if cloud.is_signed(Request(exchange.command, exchange.path, headers)):
            answer(exchange)
        else:
            refuse(exchange, 403 if "authorization" in headers else 401)

    return check


def refuse(exchange: Exchange, status: int) -> None:
    """An error; what was sent is read first, so that the client sees the answer."""
    exchange.body()
    exchange.send(status, b"<Error/>")


def blob(exchange: Exchange, *, cut_after: int | None = None, **changed: object) -> None:
    """An object or a range of it, with the headers that both clouds send; `changed` headers are what is wrong."""
    body = exchange.site.files.get(plain(exchange.path))
    if body is None:
        exchange.send(404, b"<Error/>")
        return
    tag = _tag(body)
    if exchange.headers.get("If-Match", tag) != tag:
        exchange.send(412)
        return
    start, end = _range(exchange, len(body))
    part = body[start:end]
    said = f"bytes {start}-{start + len(part) - 1}/{len(body)}"
    headers = {"Content_Length": len(part), "Content_Range": said, "ETag": tag, "Last_Modified": WHEN} | changed
    exchange.start(206 if "Range" in exchange.headers else 200, **headers, x_ms_blob_type="BlockBlob")
    exchange.wfile.write(part[:cut_after])
    if cut_after is not None:
        exchange.cut()


def _range(exchange: Exchange, size: int) -> tuple[int, int]:
    if "Range" not in exchange.headers:
        return 0, size
    start, end = (int(part) for part in exchange.headers["Range"].removeprefix("bytes=").split("-"))
    return start, end + 1


def _tag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:16]}"'


def bucket(cloud: Cloud, name: str) -> Answer:
    """What a cloud with one bucket answers to reads and to writes, to those who sign."""

    def answer(exchange: Exchange) -> None:
        if not plain(exchange.path).startswith(f"/{name}/"):
            refuse(exchange, 404)
        elif exchange.command == "PUT":
            _write(exchange, cloud.scheme)
        else:
            blob(exchange)

    return guarded(cloud, answer)


def _write(exchange: Exchange, scheme: str) -> None:
    body, path = exchange.body(), plain(exchange.path)
    if body is None:
        exchange.cut()
    elif scheme == "az" and exchange.headers.get("x-ms-blob-type") != "BlockBlob":
        exchange.send(400, b"<Error/>")
    elif _stored(exchange, path, body):
        headers = {"x_goog_generation": 1} if scheme == "gs" else {"Last_Modified": WHEN}
        exchange.send(200 if scheme == "gs" else 201, ETag=_tag(body), **headers)
    else:
        exchange.send(412 if scheme == "gs" else 409, b"<Error/>")


def _stored(exchange: Exchange, path: str, body: bytes) -> bool:
    """Stores an object, unless the request asks that nothing be there and something is."""
    conditions = (exchange.headers.get("x-goog-if-generation-match"), exchange.headers.get("If-None-Match"))
    with _MUTEX:
        if path in exchange.site.files and conditions in {("0", None), (None, "*")}:
            return False
        exchange.site.files[path] = body
    return True


def asked(site: Site, path: str) -> list[dict[str, str]]:
    """The headers of each request for a path, names in lower case."""
    found = (headers for one, headers in site.seen if plain(one) == path)
    return [{name.lower(): value for name, value in headers.items()} for headers in found]

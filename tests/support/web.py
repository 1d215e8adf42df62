"""A web server with faults, over TLS or not: static files with ranges and tags, and whatever a test puts at a path."""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from registry.etcd3.options import TlsFiles
from tests.support.ordered import ordered


class Exchange(BaseHTTPRequestHandler):
    """One request and what is answered to it."""

    protocol_version = "HTTP/1.1"
    site: Site
    asked = 0  # requests on this connection, with the one that is being answered

    def setup(self) -> None:
        super().setup()
        self.site.accepted.append(self.client_address)

    def finish(self) -> None:
        super().finish()
        self.site.ended.append(self.client_address)

    def do_POST(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked += 1
        self.site.seen.append((self.path, dict(self.headers.items())))
        try:
            self.site.answer(self)
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Says nothing."""

    def body(self) -> bytes | None:
        """What was sent with the request; None if it broke off."""
        size_bytes = int(self.headers.get("Content-Length", 0))
        content = self.rfile.read(size_bytes)
        return content if len(content) == size_bytes else None

    def start(self, status: int, **headers: object) -> None:
        """Status and headers; underscores stand for dashes."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def send(self, status: int, content: bytes = b"", **headers: object) -> None:
        """A whole answer."""
        self.start(status, **({"Content_Length": len(content)} | headers))
        self.wfile.write(content)

    def cut(self) -> None:
        """Ends the connection as it is."""
        self.wfile.flush()
        self.close_connection = True


Answer = Callable[[Exchange], None]


@dataclass
class Site:
    """What is served, and what was asked for: paths with their headers; and the connections, as their other ends."""

    files: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    has_tags: bool = True
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    accepted: list[tuple[str, int]] = field(default_factory=list)
    ended: list[tuple[str, int]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.seen]

    def headers(self, path: str) -> list[dict[str, str]]:
        """The headers of each request for a path."""
        return [headers for one, headers in self.seen if one == path]

    def put(self, folder: str, config: bytes, weights: bytes) -> None:
        """An adapter's two files."""
        self.files |= {f"{folder}adapter_config.json": config, f"{folder}adapter_model.safetensors": weights}

    def answer(self, exchange: Exchange) -> None:
        special = self.answers.get(exchange.path)
        if special is not None:
            special(exchange)
        else:
            self.serve(exchange)

    def serve(self, exchange: Exchange, *, cut_after: int | None = None) -> None:
        """The file at the path, or the asked range of it; `cut_after`: so many bytes of it, and then the end."""
        content = self.files.get(exchange.path.partition("?")[0])
        if content is None:
            exchange.send(404, b"none")
            return
        tag = f'"{sha256(content).hexdigest()[:16]}"'
        headers: dict[str, Any] = {"ETag": tag, "Accept_Ranges": "bytes"} if self.has_tags else {}
        status, start = 200, _start(exchange, tag) if self.has_tags else 0
        if start:
            status = 206
            headers["Content_Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        exchange.start(status, Content_Length=len(content) - start, **headers)
        exchange.wfile.write(content[start:][:cut_after])
        if cut_after is not None:
            exchange.cut()

    def cut_once(self, path: str, after_bytes: int) -> None:
        """The first request for a path breaks off after so many bytes of the body."""

        def broken(exchange: Exchange) -> None:
            del self.answers[path]
            self.serve(exchange, cut_after=after_bytes)

        self.answers[path] = broken
        ordered(f"the answer to {path} was not cut", lambda: self.answers.get(path) is not broken)

    def hang(self, exchange: Exchange) -> None:
        """Says nothing until the test is over."""
        self.closing.wait()
        exchange.cut()


def _start(exchange: Exchange, tag: str) -> int:
    asked = re.fullmatch(r"bytes=(\d+)-", exchange.headers.get("Range", ""))
    return int(asked[1]) if asked and exchange.headers.get("If-Range", tag) == tag else 0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        """Only binds: the base class asks a name server for our name, which some machines wait long for."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.socket.getsockname()[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what many tests are about."""


@contextmanager
def serving(site: Site, tls: TlsFiles | None = None) -> Iterator[Site]:
    """Serves a site on a free port of 127.0.0.1."""
    handler = type("Handler", (Exchange,), {"site": site})
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        assert tls.certificate is not None
        context.load_cert_chain(tls.certificate, tls.key)
        # Shaken hands in the thread of the request, so that one client cannot keep the others.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    site.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield site
    finally:
        site.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()

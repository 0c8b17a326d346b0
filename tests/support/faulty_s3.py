"""A proxy in front of an S3 server that does what broken networks and stores do, to the requests that a test names."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_ONE_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass
class Fault:
    """To requests with this method whose path and query contain ``part``, so many of them after the first ``after``.

    ``kind``: ``answer`` (with ``status`` and ``code``), ``hang``, ``drop``, ``truncate`` (after ``keep_bytes``),
    ``corrupt`` what comes, ``corrupt-sent`` what goes, or ``lose-answer`` of what is carried out.
    """

    kind: str
    method: str
    part: str = ""
    times: int = 1_000_000
    after: int = 0
    status: int = 500
    code: str = "InternalError"
    headers: dict[str, str] = field(default_factory=dict)
    keep_bytes: int = 0


class FaultyS3:
    def __init__(self, upstream: str, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(upstream)
        self._upstream = (str(parts.hostname), int(parts.port or 80))
        self.faults: list[Fault] = []
        # (method, path and query) of each request, as it comes.
        self.requests: list[tuple[str, str]] = []
        # The same, once carried out by the server behind.
        self.carried_out: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        self._released = threading.Event()
        handler = type("_Bound", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        if tls:
            # The handshake is made in the connection's own thread.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="faulty-s3")
        self._thread.start()

    def count(self, method: str, part: str) -> int:
        return sum(1 for one, path in self.requests if one == method and part in path)

    def heal(self) -> None:
        """No faults from here on; what hangs is dropped."""
        self.faults = []
        self._released.set()
        self._released = threading.Event()

    def stop(self) -> None:
        self.heal()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fault_for(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append((method, path))
            for fault in self.faults:
                if fault.method == method and fault.part in path:
                    if fault.after:
                        fault.after -= 1
                    elif fault.times:
                        fault.times -= 1
                        return fault
        return None

    def hang(self) -> None:
        self._released.wait(60)

    def forward(self, method: str, path: str, body: bytes, headers: list[tuple[str, str]]) -> _Answer:
        connection = http.client.HTTPConnection(*self._upstream, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return _Answer(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()
            self.carried_out.append((method, path))


@dataclass
class _Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyS3

    def handle(self) -> None:
        # A client that hangs up, or does not trust the certificate.
        with suppress(OSError):
            super().handle()

    def _serve(self) -> None:
        with suppress(OSError):
            self._serve_once()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _serve_once(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.fault_for(self.command, self.path)
        kind = fault.kind if fault else ""
        if kind == "hang":
            self.proxy.hang()
        if kind in ("hang", "drop"):
            self.close_connection = True
            return
        if fault and kind == "answer":
            text = f"<Error><Code>{fault.code}</Code><Message>as the test wants it</Message></Error>".encode()
            self._answer(_Answer(fault.status, list(fault.headers.items()), text))
            return
        if kind == "corrupt-sent":
            body = _flipped(body)
        headers = [(name, value) for name, value in self.headers.items() if name.lower() != "expect"]
        answer = self.proxy.forward(self.command, self.path, body, headers)
        if kind == "lose-answer":
            self.close_connection = True
            return
        if kind == "corrupt":
            answer.body = _flipped(answer.body)
        self._answer(answer, fault.keep_bytes if fault and kind == "truncate" else None)

    def _answer(self, answer: _Answer, keep_bytes: int | None = None) -> None:
        self.send_response_only(answer.status)
        length = str(len(answer.body))
        for name, value in answer.headers:
            if self.command == "HEAD" and name.lower() == "content-length":
                length = value
            if name.lower() not in _ONE_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[:keep_bytes])
        if keep_bytes is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Not into the test's output."""


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@contextmanager
def faulty(upstream: str, tls: ssl.SSLContext | None = None) -> Iterator[FaultyS3]:
    proxy = FaultyS3(upstream, tls)
    try:
        yield proxy
    finally:
        proxy.stop()

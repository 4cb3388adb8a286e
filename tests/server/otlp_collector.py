"""A collector of spans on loopback: a real HTTP server that parses what OTLP sends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """``spans`` has everything received. ``status``: of the next answers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = 200
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self._arrived = threading.Condition()

    def receive(self, body: bytes) -> int:
        request = ExportTraceServiceRequest.FromString(body)
        with self._arrived:
            for group in request.resource_spans:
                pairs = group.resource.attributes
                self.resources.append({one.key: one.value.string_value for one in pairs})
                for scope in group.scope_spans:
                    self.spans.extend(scope.spans)
            self._arrived.notify_all()
        return self.status

    def wait_for(self, *names: str) -> dict[str, Any]:
        """The last span of each of ``names``, as soon as there is one."""
        with self._arrived:
            assert self._arrived.wait_for(
                lambda: set(names) <= {span.name for span in self.spans}, timeout=60
            ), [span.name for span in self.spans]
            return {span.name: span for span in self.spans}


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(collector.receive(body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""A web server on loopback for programs' requests, that remembers what was asked."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class WebStub:
    """``/json`` answers JSON, ``/redirect?to=URL`` redirects, ``/held`` answers after ``close``;
    ``/events`` sends two server-sent events, the second once ``release`` was called."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.bodies: list[bytes] = []
        self._released = threading.Event()
        self._asked = threading.Condition()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stub._answer(self)

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def close(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait_for(self, path: str, num: int) -> None:
        """Return when ``path`` has been asked ``num`` times."""
        with self._asked:
            assert self._asked.wait_for(lambda: self.paths.count(path) >= num, timeout=120)

    def release(self) -> None:
        """What is held back is sent."""
        self._released.set()

    def _send_events(self, request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("content-type", "text/event-stream")
        request.end_headers()
        request.wfile.write(b"event: first\ndata: 1\n\n")
        self._released.wait(timeout=60)
        request.wfile.write(b"data: 2\ndata: 3\n\n")

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        body = request.rfile.read(int(request.headers.get("content-length", 0)))
        with self._asked:
            self.paths.append(parts.path)
            self.bodies.append(body)
            self._asked.notify_all()
        if parts.path == "/held":
            self._released.wait(timeout=60)
        if parts.path == "/events":
            self._send_events(request)
            return
        body = b'{"answer": 42}'
        if parts.path == "/redirect":
            request.send_response(302)
            request.send_header("location", parse_qs(parts.query)["to"][0])
        else:
            request.send_response(200)
            request.send_header("content-type", "application/json")
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

"""What a search server may answer: bounds, damage, and errors that help."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from quire.core.errors import ConfigError, EngineFault, EngineLost
from quire.node.search import searxng
from quire.node.search.searxng import SearxngSearch, plain_query
from quire.programs.search import SearchResult

Row = dict[str, Any]


class Server:
    """Answers with ``status``, ``headers`` and ``pages``: one body for each page, then the last;
    not before ``release`` if it ``holds``."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.pages: list[bytes] = [b'{"results": []}']
        self.holds = False
        self.release = threading.Event()
        self.asked: list[tuple[str, dict[str, list[str]], str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"127.0.0.1:{self._server.server_port}"

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        query = parse_qs(parts.query)
        self.asked.append((parts.path, query, request.headers.get("authorization")))
        if self.holds:
            self.release.wait(timeout=60)
        number = int(query.get("pageno", ["1"])[0])
        body = self.pages[min(number, len(self.pages)) - 1]
        request.send_response(self.status)
        for name, value in {"content-length": str(len(body)), **self.headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    def rows(self, *rows: Row) -> None:
        self.pages = [json.dumps({"results": rows}).encode(), b'{"results": []}']

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


async def found(server: Server, query: str = "words", top_k: int = 4) -> list[SearchResult]:
    engine = SearxngSearch(f"http://{server.address}")
    try:
        return await engine.search(query, top_k)
    finally:
        await engine.close()


def row(number: int, **fields: Any) -> Row:
    given = {"title": f"T{number}", "url": f"http://x/{number}", "content": f"text {number}"}
    return {**given, "score": 1.0 - number / 10, **fields}


async def test_results_come_in_the_servers_order_as_many_as_were_asked_for(server: Server) -> None:
    server.rows(*(row(number) for number in range(9)))
    results = await found(server, "a question?", 2)
    assert results == [
        SearchResult("T0", "http://x/0", "text 0", 1.0),
        SearchResult("T1", "http://x/1", "text 1", 0.9),
    ]
    assert server.asked == [
        ("/search", {"q": ["a question?"], "format": ["json"], "pageno": ["1"]}, None)
    ]


async def test_nothing_is_fetched_that_a_result_or_a_redirect_names(server: Server) -> None:
    """A result may name an address of the node's own network, here the one that would be heard."""
    inside = f"http://{server.address}/inside"
    server.rows(row(1, url=inside, thumbnail=inside, img_src=inside, iframe_src=inside))
    (result,) = await found(server, top_k=1)
    assert result.address == inside
    server.status, server.headers = 302, {"location": inside}
    with pytest.raises(EngineFault, match="redirects"):
        await found(server)
    assert [path for path, _, _ in server.asked] == ["/search", "/search"]


async def test_the_address_may_have_a_path_and_a_password_and_no_error_tells_it(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the address, without the password, once until the server answers again."""
    engine = SearxngSearch(f"http://me:secret@{server.address}/searx/")
    await engine.search("x", 1)
    (path, _, authorization) = server.asked[0]
    assert path == "/searx/search"
    assert authorization == "Basic " + base64.b64encode(b"me:secret").decode()
    server.status = 500
    for _ in range(2):
        with pytest.raises(EngineLost, match=r"^the search server answers 500: try again"):
            await engine.search("x", 1)
    server.status = 200
    await engine.search("x", 1)
    server.status = 500
    with pytest.raises(EngineLost, match=r"^the search server answers 500: try again"):
        await engine.search("x", 1)
    where = f"the search server http://{server.address}/searx/ cannot be used now"
    told = [record.getMessage() for record in caplog.records if record.name == searxng.__name__]
    assert [text.startswith(where) for text in told] == [True, True]
    assert "answers 500" in told[0]
    assert "secret" not in str(told)
    await engine.close()


async def test_a_server_that_is_gone_is_named_in_the_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = SearxngSearch("http://127.0.0.1:9/")
    with pytest.raises(EngineLost, match=r"\(no connection to it\)") as raised:
        await engine.search("x", 1)
    assert "127.0.0.1" not in str(raised.value)
    assert "http://127.0.0.1:9/ cannot be used now: All connection attempts failed" in caplog.text
    await engine.close()


async def test_pages_are_bounded_and_the_same_result_counts_once(server: Server) -> None:
    server.pages = [
        json.dumps({"results": [row(number), row(0), row(number, url="y")]}).encode()
        for number in range(1, 9)
    ]
    results = await found(server, top_k=64)
    assert [page["pageno"] for _, page, _ in server.asked] == [["1"], ["2"], ["3"], ["4"]]
    assert len(results) == 9
    server.asked.clear()
    server.pages = server.pages[:1]
    assert len(await found(server, top_k=64)) == 3
    assert len(server.asked) == 2, "a page without anything new is the last"


async def test_what_a_result_may_be_is_bounded_and_of_one_type(server: Server) -> None:
    deep: Any = []
    for _ in range(50):
        deep = [deep]
    server.rows(
        row(0, title="t" * 9999, url="u" * 9999, content="c" * 99999, score="high"),
        row(1, title=None, url=7, content="a\x00b\x1b[31m\ud800c\n", score=True),
        row(2, title=deep, content={"x": deep}),
        row(3, content="", score=float("1e300")),
        row(4, score=-(10**400)),
        {"answers": deep},
    )
    long, odd, title, huge = await found(server, top_k=9)
    assert [len(text) for text in long[:3]] == [512, 2048, 4096]
    assert long.score == 1.0
    assert odd == SearchResult("", "", "a b [31m c", 0.5)
    assert title.text == title.title == "T3", "a title stands for a text that is missing"
    assert huge.score == 0.2


async def test_a_server_whose_own_engines_are_silent_has_not_found_nothing(server: Server) -> None:
    silent = [["web\x07", "timeout"], ["other", None], 7]
    answer: dict[str, Any] = {"results": [], "unresponsive_engines": silent}
    server.pages = [json.dumps(answer).encode()]
    with pytest.raises(EngineLost, match=r"finds nothing, .* \(web : timeout, other\): try again"):
        await found(server)
    server.pages = [json.dumps({**answer, "results": [row(0)]}).encode()]
    assert [one.text for one in await found(server)] == ["text 0"]
    server.pages = [b'{"results": [], "unresponsive_engines": []}']
    assert await found(server) == []


async def test_a_query_of_marks_alone_asks_nobody(server: Server) -> None:
    assert await found(server, "!! : ?") == []
    assert server.asked == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>", "does not answer with search results in JSON"),
        (b"", "does not answer with search results in JSON"),
        (b"[]", "does not answer with search results in JSON .*give the address of a SearXNG"),
        (b'{"results": {"a": 1}}', "does not answer with search results in JSON"),
        (b'{"results": [], "unresponsive_engines": 7}', "in JSON .TypeError: results and unres"),
        (b'{"query": "x"}', "in JSON .KeyError: 'results'."),
        (b'{"results": [' + b"[" * 100_000, "does not answer with search results in JSON"),
        (b'{"results": [], "x": ' + b'{"a":' * 100_000, "does not answer with search results"),
        (b'{"results": [{"title": "\xff"}]}', "does not answer with search results in JSON"),
        (b'{"results": [], "x": "' + b"x" * (4 << 20) + b'"}', "answers more than 4194304 bytes"),
    ],
)
async def test_an_answer_that_is_none_is_a_fault_and_not_asked_for_again(
    server: Server, body: bytes, message: str
) -> None:
    server.pages = [body]
    with pytest.raises(EngineFault, match=message):
        await found(server)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("status", "headers", "kind", "message"),
    [
        (403, {}, EngineFault, "answers 403: name json among its search.formats"),
        (404, {}, EngineFault, "answers 404: give its address to --search, with its path"),
        (429, {}, EngineLost, "answers 429: try again"),
        (503, {}, EngineLost, "answers 503: try again"),
        (302, {"location": "http://169.254.169.254/"}, EngineFault, "redirects, or sends what"),
        (200, {"content-encoding": "br"}, EngineFault, "redirects, or sends what cannot be decom"),
    ],
)
async def test_a_status_says_whether_to_try_again(
    server: Server, status: int, headers: dict[str, str], kind: type[Exception], message: str
) -> None:
    server.status, server.headers = status, headers
    with pytest.raises(kind, match=message):
        await found(server)


async def test_a_server_that_does_not_answer_in_time_is_lost(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searxng, "TIMEOUT_S", 0.05)
    server.holds = True
    with pytest.raises(
        EngineLost, match=r"cannot be used now \(no answer within 0\.05 s\)"
    ) as lost:
        await found(server)
    assert lost.value.details["waited_s"] == 0.05
    server.holds = False
    server.status = 503
    with pytest.raises(EngineLost) as lost:
        await found(server)
    assert not lost.value.details["waited_s"], "it has answered at once"


@pytest.mark.parametrize(
    ("query", "plain"),
    [
        ("!!g  one\ttwo\n", "g one two"),
        ("one !tx :de <3 ?&x", "one tx de 3 x"),
        ("C++ and a<b, what? 3!", "C++ and a<b, what? 3!"),
        ("a\x00b \ud800", "a b"),
    ],
)
def test_a_query_is_words_in_one_line(query: str, plain: str) -> None:
    assert plain_query(query) == plain


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://", "give the address of the server alone"),
        ("http://h/?q=1", "--search http://h/.q=1: give the address of the server alone"),
        ("http://a:b@h/#x", "--search http://h/#x: give"),
        ("http://h:port", "is not a URL"),
    ],
)
def test_an_address_that_is_none_is_refused_when_the_node_is_made(
    address: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        SearxngSearch(address)

"""What clients of a node make of its answers."""

from __future__ import annotations

import httpx
import pytest

from quire.client.wire import answer_of, unreachable
from quire.core.errors import QuireError


@pytest.mark.parametrize("body", [b"<html>Welcome</html>", b"[1]", b"\xff", b"null"])
def test_a_server_that_is_no_node_is_named(body: bytes) -> None:
    with pytest.raises(QuireError, match="http://there answered with no JSON object: check that"):
        answer_of("http://there", httpx.Response(200, content=body))


def test_an_answer_is_an_object_or_nothing() -> None:
    assert answer_of("http://there", httpx.Response(200, content=b'{"a": 1}')) == {"a": 1}
    assert answer_of("http://there", httpx.Response(204)) == {}


def test_a_node_that_ends_the_connection_is_not_one_that_is_not_there() -> None:
    def told(reason: Exception) -> str:
        return str(unreachable("http://there", reason))

    for ended in (httpx.ReadError(""), httpx.WriteError(""), httpx.RemoteProtocolError("cut off")):
        assert told(ended).startswith("http://there ended the connection before it had answered (")
        assert "longer than its --max-body-bytes or --max-query-bytes" in told(ended)
    assert "(ReadError)" in told(httpx.ReadError(""))
    assert told(httpx.ConnectError("refused")).startswith(
        "no node answers at http://there (refused)"
    )
    assert "there (ConnectTimeout): start one" in told(httpx.ConnectTimeout(""))

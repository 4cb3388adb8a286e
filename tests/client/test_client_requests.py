"""The keyword arguments of a client's methods are those of the routes, and no others."""

from __future__ import annotations

import pytest

from quire.client import Client, LaunchSettings, QuerySettings
from quire.client.requests import launch_body, query_body
from quire.core.errors import ConfigError, InvalidArgument
from quire.server.schemas.programs import LaunchRequest
from quire.server.schemas.workflows import QueryRequest

OF_LAUNCHES = {"code", "named"}
"""``code`` is ``source`` or ``module`` of the request, and ``named`` is ``named_args``. ``files``
are not sent: a package is one text."""


def test_a_query_has_the_settings_of_its_route() -> None:
    of_the_method = {"query", "stream"}
    assert set(QuerySettings.__annotations__) == set(QueryRequest.model_fields) - of_the_method


def test_a_launch_has_the_settings_of_its_route() -> None:
    of_the_method = {"program", "args", "wait", "stream"}
    code = {"source", "files", "module", "named_args"}
    expected = set(LaunchRequest.model_fields) - of_the_method - code | OF_LAUNCHES
    assert set(LaunchSettings.__annotations__) == expected


def test_what_is_none_or_off_is_not_sent() -> None:
    assert query_body({"a": 1}, {"speculate": False, "deadline_s": None}) == {"query": {"a": 1}}
    assert query_body(None, {"query_id": "q", "resume": True}) == {"query_id": "q", "resume": True}
    assert launch_body("react", ["x"], {"seed": 0, "priority": None, "named": {"n": 1}}) == {
        "program": "react", "args": ["x"], "seed": 0, "named_args": {"n": 1}
    }  # fmt: skip


async def test_an_unknown_setting_is_refused_by_name() -> None:
    """Nothing is sent: an option with a typing error would else have no effect."""
    async with Client("http://127.0.0.1:1") as node:
        with pytest.raises(TypeError, match=r"query\(\) has no keyword argument 'deadline'"):
            await node.query("rag", {}, deadline=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="it has config, priority"):
            node.query_events("rag", {}, deadline=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"launch\(\) has no keyword argument 'sed'"):
            await node.launch("react", sed=3)  # type: ignore[call-arg]
        with pytest.raises(InvalidArgument, match="either program"):
            await node.run("react", code="x")


@pytest.mark.parametrize("key", ["ä", "two\nlines", "two\0", " before", "behind "])
def test_a_key_that_no_header_can_carry_is_refused_before_anything_is_sent(key: str) -> None:
    with pytest.raises(ConfigError, match="no request can carry"):
        Client("http://127.0.0.1:1", api_key=key)

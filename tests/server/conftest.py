"""One shared server for the tests that only ask; tests that stop or break one start their own."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import httpx
import openai
import pytest
from request_log import RequestLines
from scripted_server import RunningServer, running_server

from quire.testing import FakeEncoder


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    encoders = {"embedder": FakeEncoder(), "ranker": FakeEncoder("cross_encoder")}
    with running_server(encoders=encoders) as running:
        yield running


@pytest.fixture
def request_lines() -> Iterator[RequestLines]:
    logger = logging.getLogger("quire.requests")
    lines = RequestLines()
    logger.addHandler(lines)
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    yield lines
    logger.setLevel(level)
    logger.propagate = propagate
    logger.removeHandler(lines)


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http

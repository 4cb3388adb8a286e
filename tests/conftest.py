"""What tests of several folders share: a home, the sandbox in it, and a server with the shipped
model.

With ``QUIRE_COMPILED=1`` they run on the control core that ``quire compile`` has built, and fail if
there is none that fits. Otherwise control is Python's, whatever this user has compiled.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import settings

from quire.cli.compiled_control import COMPILED_VARIABLE, DIRECTORY_VARIABLE, compiled_directory
from quire.compilation import in_use, use_compiled
from quire.core.interpreter import settle

os.environ.setdefault(COMPILED_VARIABLE, "0")  # for the processes that tests start as well
if os.environ[COMPILED_VARIABLE] == "1":
    os.environ.setdefault(DIRECTORY_VARIABLE, str(compiled_directory()))  # of this user's home
COMPILED = use_compiled(compiled_directory()) if os.environ[COMPILED_VARIABLE] == "1" else None
"""Here, before the files beside the tests import a node."""

CLIENTS = Path(__file__).parents[1] / ".venv-clients" / "bin" / "python"
if CLIENTS.exists():  # 'make test-clients' has made it; the official package 'mcp' is in it
    os.environ.setdefault("QUIRE_TEST_MCP_PYTHON", str(CLIENTS))

# no server of the tests has a certificate, and to read all that are trusted takes each HTTP client
# 20 ms; these are read when they are looked for
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

# on a busy machine an answer may take longer than the five seconds that httpx waits by default
_httpx_timeout: httpx.Timeout = inspect.signature(httpx.Client).parameters["timeout"].default
_httpx_timeout.connect = _httpx_timeout.read = _httpx_timeout.write = _httpx_timeout.pool = 120.0

settings.register_profile("untimed", deadline=None)  # on a busy machine an example may take long
settings.load_profile("untimed")  # now, so that what a folder or an option asks for comes later


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--chaos-s",
        type=float,
        default=0.0,
        help="seconds for which tests/faults begins rounds; without: one round on every machine",
    )
    parser.addoption("--chaos-seed", type=int, default=12, help="of the rounds of tests/faults")
    parser.addoption(
        "--engine-kills",
        type=int,
        default=3,
        help="engines that programs which fork lose (tests/node/programs/restarting)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """A home for all test processes and for what they start, kept between runs: nodes without a
    ``cache_dir`` find there what others have built, and nothing is written to the user's."""
    cache: pytest.Cache | None = getattr(config, "cache", None)
    if cache is not None:  # else -p no:cacheprovider
        os.environ["HOME"] = str(cache.mkdir("quire-home"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with a test that may take longer than the usual limit come first. They start
    processes and wait for them, which leaves the processor to the other workers' tests, and none
    of them is still to be run when everything else is done."""
    long = {item.path for item in items if _may_take_long(item)}
    items.sort(key=lambda item: item.path not in long)


def _may_take_long(item: pytest.Item) -> bool:
    usual_s = float(item.config.getini("timeout"))
    return any(
        mark.args and (mark.args[0] == 0 or mark.args[0] > usual_s)
        for mark in item.iter_markers("timeout")
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    settle()  # millions of objects of tests and libraries, which each full collection would scan
    if COMPILED is not None and session.items and not in_use():
        raise pytest.UsageError(f"control is not compiled: {COMPILED.refusal}")


@pytest.fixture(scope="session")
def shipped_server() -> Iterator[str]:
    """The URL of a ``quire serve`` in a child process, one for each test process.

    It takes uploaded programs. Tests share it, so they must not stop it nor count on its state.
    """
    from quire.cli.server_process import server_process

    arguments = ("--allow-upload", "--num-threads", "1", "--log-level", "warning")
    with asyncio.Runner() as runner:
        serving = server_process(arguments)
        server = runner.run(serving.__aenter__())
        yield server.url
        runner.run(serving.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def sandbox_cache(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the sandbox builds once, shared by all test processes and kept between runs: the default
    of a node in the tests' home."""
    if getattr(pytestconfig, "cache", None) is None:
        return tmp_path_factory.mktemp("quire-sandbox")
    directory = Path.home() / ".cache" / "quire"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory

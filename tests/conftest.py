"""What tests of several folders share: one real server with the shipped model.

With ``QUIRE_COMPILED=1`` they run on the control core that ``quire compile`` has built, and fail if
there is none that fits. Otherwise control is Python's, whatever this user has compiled.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from quire.cli.compiled_control import COMPILED_VARIABLE, compiled_directory
from quire.compilation import in_use, use_compiled
from quire.core.interpreter import settle

os.environ.setdefault(COMPILED_VARIABLE, "0")  # for the processes that tests start as well
COMPILED = use_compiled(compiled_directory()) if os.environ[COMPILED_VARIABLE] == "1" else None
"""Here, before the files beside the tests import a node."""

CLIENTS = Path(__file__).parents[1] / ".venv-clients" / "bin" / "python"
if CLIENTS.exists():  # 'make test-clients' has made it; the official package 'mcp' is in it
    os.environ.setdefault("QUIRE_TEST_MCP_PYTHON", str(CLIENTS))

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
    """What the sandbox builds once, shared by all test processes and kept between runs."""
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    if cache is None:  # -p no:cacheprovider
        return tmp_path_factory.mktemp("quire-sandbox")
    directory = cache.mkdir("quire-sandbox")
    directory.chmod(0o700)
    return directory

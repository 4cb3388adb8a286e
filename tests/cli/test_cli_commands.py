"""The table of subcommands: it says what the commands say of themselves, and imports them late."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest
from cli_invoke import invoke

from quire.cli.commands import SUBCOMMANDS, Subcommand

OF_SERVERS = {
    "numpy", "zmq", "fastapi", "starlette", "uvicorn", "jinja2", "tokenizers", "openai",
    "llguidance", "quire.node", "quire.server", "quire.engine", "quire.control",
}  # fmt: skip
OF_NODES = {
    "numpy", "jinja2", "tokenizers", "quire.programs", "quire.control", "quire.engine",
}  # fmt: skip
OF_ENGINES = {"torch", "transformers", "safetensors"}
LIGHT = ("ps", "top", "attach", "logs", "kill", "push", "new", "status", "down")
"""Those that ask a running node or cluster, or write a file."""

SHOWN = """
import contextlib, io, json, sys
from quire.cli import main
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(arguments)
print(json.dumps(sorted(sys.modules)))
"""


def imported(*commands: list[str]) -> set[str]:
    """The modules of a process in which ``commands`` have run."""
    ran = subprocess.run(
        [sys.executable, "-c", SHOWN, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(ran.stdout))


@pytest.mark.parametrize("one", SUBCOMMANDS.values(), ids=lambda one: one.name)
def test_the_overview_has_the_first_sentence_of_each_command(one: Subcommand) -> None:
    text = inspect.getdoc(one.load().callback) or ""
    assert " ".join(text.partition("\n\n")[0].split()) == one.summary


@pytest.mark.parametrize("one", SUBCOMMANDS.values(), ids=lambda one: one.name)
def test_the_help_says_what_each_argument_and_option_is_for(one: Subcommand) -> None:
    assert [param.name for param in one.load().params if not getattr(param, "help", "")] == []


def test_the_overview_and_the_version_import_no_command() -> None:
    found = imported(["--help"], ["--version"])
    assert not found & (OF_SERVERS | OF_ENGINES)
    assert not [one.module for one in SUBCOMMANDS.values() if f"quire.cli.{one.module}" in found]


def test_commands_that_ask_a_running_node_import_no_server() -> None:
    found = imported(*([command, "--help"] for command in LIGHT))
    assert "quire.cli.processes" in found
    assert not found & (OF_SERVERS | OF_ENGINES)


def test_a_router_imports_nothing_of_a_node() -> None:
    """They would be most of its start, which every router of a cluster pays."""
    found = imported(["router", "--help"])
    assert "quire.cluster.service" in found
    assert not found & OF_NODES


def test_no_help_imports_what_runs_models() -> None:
    found = imported(*([command, "--help"] for command in SUBCOMMANDS))
    assert "quire.cli.serve" in found
    assert not found & OF_ENGINES


@pytest.mark.parametrize("arguments", [["--help"], ["ps", "--help"], ["ps", "--stat", "x"]])
def test_usage_names_the_command(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    ran = invoke(capsys, *arguments)
    assert f"quire {arguments[0] if len(arguments) > 1 else '[OPTIONS]'}" in ran.out + ran.err

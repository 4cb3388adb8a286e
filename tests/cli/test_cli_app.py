"""The command as a whole: version, help, exit codes, one line for an error."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import pytest
from cli_invoke import invoke

from quire.cli.options.scheduler import BalancerOption, PolicyOption
from quire.cli.process_table import ShownState
from quire.control.placement.balancers import BALANCERS
from quire.control.policies import POLICIES
from quire.control.programs.program import ProgramState as SessionState
from quire.programs.runtime.running import ProgramState

Capture = pytest.CaptureFixture[str]

COMMANDS = [
    "serve",
    "demo",
    "replay",
    "run",
    "ps",
    "attach",
    "logs",
    "kill",
    "models",
    "doctor",
    "compile",
]


def test_version(capsys: Capture) -> None:
    ran = invoke(capsys, "--version")
    assert (ran.code, ran.out) == (0, f"quire {version('quire')}\n")


@pytest.mark.parametrize("command", ["serve", "router", "workflow", "ps"])
def test_the_help_of_a_command_has_no_name_that_is_cut(capsys: Capture, command: str) -> None:
    shown = " ".join(invoke(capsys, command, "--help").out.split())
    assert "env var" not in shown
    named = re.findall(r"environment variables, such as (QUIRE_\w+): docs/reference/cli.md", shown)
    assert len(named) == 1
    assert f"`{named[0]}`" in (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()


def test_no_word_of_the_help_is_cut_in_two() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()
    assert re.findall(r"\w- (?!or |and )\w+", page) == []


def test_the_help_of_a_command_without_variables_does_not_speak_of_them(capsys: Capture) -> None:
    assert "environment variables" not in invoke(capsys, "new", "--help").out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(capsys: Capture, command: str) -> None:
    ran = invoke(capsys, command, "--help")
    assert ran.code == 0
    assert f"quire {command}" in ran.out
    assert "Examples:" in ran.out


def test_ctrl_c_before_the_command_is_loaded_shows_no_traceback(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "quire.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "quire.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    ran = invoke(capsys, "--version")
    assert (ran.code, ran.out, ran.err) == (130, "", "")


def test_an_unknown_command_is_a_usage_error(capsys: Capture) -> None:
    assert invoke(capsys, "sing").code == 2


def test_an_error_is_one_line_with_a_remedy(capsys: Capture) -> None:
    ran = invoke(capsys, "serve", "--host", "0.0.0.0")
    assert ran.code == 2
    (line,) = ran.err.splitlines()
    assert line.startswith("error: ")
    assert "--api-key" in line


def test_options_come_from_the_environment(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_HOST", "0.0.0.0")
    assert "0.0.0.0" in invoke(capsys, "serve").err
    monkeypatch.setenv("QUIRE_KV_CACHE_BYTES", "a lot")
    ran = invoke(capsys, "serve", "--host", "127.0.0.1")
    assert ran.code == 2
    assert "512MiB" in ran.err


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("ps", "--url", "http://127.0.0.1:9"), "quire serve"),
        (("ps", "--url", "nonsense"), "http://127.0.0.1:8000"),
        (("run", "no_such_program"), "quire run --list"),
        (("run", "reactt"), "did you mean react or"),
        (("run", "missing.py"), "missing.py"),
        (("replay", "missing.log"), "missing.log"),
        (("models", "missing-directory"), "config.json"),
        (("serve", "a=org/a", "a=org/b"), "a: several models"),
        (("serve", "org/a", "org/b", "--model-name", "x"), "NAME=SOURCE"),
        (("serve", "--page-size", "65"), "64"),
        (("serve", "--api-keys-file", "missing.toml"), "missing.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_ends_with_status_2(
    capsys: Capture, arguments: tuple[str, ...], remedy: str
) -> None:
    ran = invoke(capsys, *arguments)
    assert ran.code == 2
    assert remedy in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "--policy", "fastest"), "'fastest' is not one of 'fcfs', 'program_fcfs'"),
        (("ps", "--state", "done"), "'done' is not one of 'starting', 'idle', 'waiting'"),
        (("serve", "--port", "99999"), "'99999' should be less than or equal to 65535 "),
        (("serve", "--port", "http"), "'http' should be a valid integer "),
        (("serve", "--head-timeout", "0"), "'0' should be greater than or equal to 0.1"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_what_is_said_of_a_wrong_value_repeats_it(
    capsys: Capture, arguments: tuple[str, ...], message: str
) -> None:
    ran = invoke(capsys, *arguments)
    said = " ".join(ran.err.replace("│", " ").split())
    assert ran.code == 2
    assert message in said
    assert arguments[-1] in said
    assert "Value error" not in said


def test_the_choices_of_policies_are_those_there_are() -> None:
    assert set(get_args(PolicyOption)) == set(POLICIES)
    assert set(get_args(BalancerOption)) == set(BALANCERS)


def test_the_states_that_ps_chooses_from_are_those_there_are() -> None:
    assert set(get_args(ShownState)) == {*ProgramState, *get_args(SessionState)}


def test_the_first_tab_in_zsh_completes(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """zsh loads the script with the first TAB and calls it as ``_quire``: it must complete then."""
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    script = invoke(capsys, "--show-completion", "zsh").out
    assert script.startswith("#compdef quire\n")
    *_, condition, call, end = script.splitlines()
    assert condition == 'if [[ "$funcstack[1]" == "_quire" ]]; then'
    assert (call.strip(), end) == ('_quire_completion "$@"', "fi")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("quire ru", ["run"]),
        ("quire run --see", ["--seed"]),
        ("quire run tree", ["tree_of_thought"]),
    ],
)
def test_a_shell_completes_commands_options_and_programs(
    words: str,
    completed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_QUIRE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setattr("sys.argv", ["quire"])
    assert invoke(capsys).out.split() == completed

"""Every documented snippet runs, and every documented command is known and run by some test."""

from __future__ import annotations

import gc
import re
import runpy
import shlex
import traceback
import warnings
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from docs_markdown import ROOT, Block, blocks, commands
from same_logging import same_logging

from quire.cli import main
from quire.cli.cluster_options import cluster_commands
from quire.cli.commands import SUBCOMMANDS
from quire.cli.configuration import tenants
from quire.cluster.deployment.reading import read_cluster
from quire.programs.library import LIBRARY

BASE_URL = "http://127.0.0.1:8000"

RUN_BY = {
    "make demo": "tests/cli/test_cli_demo.py",
    "make test": ".ci/run",
    "quire attach": "tests/cli/test_cli_processes.py",
    "quire compile": "tests/cli/test_cli_compile.py",
    "quire demo": "tests/cli/test_cli_demo.py",
    "quire down": "tests/cli/test_cli_cluster.py",
    "quire doctor": "tests/cli/test_cli_doctor.py",
    "quire kill": "tests/cli/test_cli_processes.py",
    "quire logs": "tests/cli/test_cli_processes.py",
    "quire models": "tests/cli/test_cli_models.py",
    "quire new": "tests/cli/test_cli_new.py",
    "quire profile": "tests/cli/profile/test_cli_profile.py",
    "quire ps": "tests/cli/test_cli_processes.py",
    "quire push": "tests/server/test_server_sandbox.py",
    "quire replay": "tests/cli/test_cli_replay.py",
    "quire router": "tests/cli/test_cli_router.py",
    "quire run": "tests/cli/test_cli_run.py",
    "quire serve": "tests/cli/test_cli_serve.py",
    "quire sim": "tests/cli/sim/test_cli_sim.py",
    "quire status": "tests/cli/test_cli_cluster.py",
    "quire top": "tests/cli/top/test_cli_top.py",
    "quire trace": "tests/cli/test_cli_trace.py",
    "quire up": "tests/cli/test_cli_cluster.py",
    "quire workflow": "tests/cli/workflow/test_cli_workflow.py",
}
"""Where each command of the pages is really run, by its first two words."""


def _id(block: Block) -> str:
    return block.place


@dataclass(frozen=True, slots=True)
class Ran:
    """What a script or a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def run_python(text: str, folder: Path) -> Ran:
    """Run ``text`` as a script in ``folder``; in the test's process, which has imported by now
    what each new one would import for a second."""
    script = folder / "snippet.py"
    script.write_text(text, encoding="utf-8")
    return _run(partial(runpy.run_path, str(script), run_name="__main__"), folder)


def _run(run: Callable[[], object], folder: Path) -> Ran:
    out, err, code = StringIO(), StringIO(), 0
    with (
        chdir(folder), redirect_stdout(out), redirect_stderr(err), same_logging(),
        warnings.catch_warnings(),
    ):  # fmt: skip
        warnings.simplefilter("ignore", ResourceWarning)  # a script's end closes what it has open
        try:
            run()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except Exception:
            traceback.print_exc()
            code = 1
        gc.collect()
    return Ran(code, out.getvalue(), err.getvalue())


def _is_inferlet(block: Block) -> bool:
    return "@inferlet" in block.text and "asyncio.run(" not in block.text


SIGNATURES = [ROOT / "docs" / "reference" / name for name in ("api.md", "sdk.md")]
"""Its blocks are signatures; tests/programs/test_programs_reference.py keeps them current."""

CLUSTER = ROOT / "docs" / "guide" / "microserving.md"
"""Its blocks need two nodes: tests/docs/test_docs_microserving.py."""

python_blocks = [block for block in blocks("python") if block.page not in (*SIGNATURES, CLUSTER)]
scripts = [block for block in python_blocks if not _is_inferlet(block)]
inferlets = [block for block in python_blocks if _is_inferlet(block)]


def test_there_are_snippets() -> None:
    assert len(scripts) >= 2
    assert len(inferlets) >= 1


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", scripts, ids=_id)
def test_a_python_block_runs(block: Block, tmp_path: Path, shipped_server: str) -> None:
    ran = run_python(block.text.replace(BASE_URL, shipped_server), tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip(), "a snippet shows something"


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", inferlets, ids=_id)
def test_an_inferlet_runs_as_the_text_says(
    block: Block, tmp_path: Path, shipped_server: str
) -> None:
    """The command stands in the text before the block: `quire run FILE -- ARGUMENTS`."""
    before = block.page.read_text(encoding="utf-8").splitlines()[: block.line - 1]
    found = re.findall(
        r"`(?:\.venv/bin/)?quire run (\S+\.py)( --stream)?( -- [^`]*)?`", "\n".join(before)
    )
    assert found, f"{block.place}: no command before the block says how to run it"
    name, stream, arguments = found[-1]
    (tmp_path / name).write_text(block.text, encoding="utf-8")
    command = ["run", name, "--url", shipped_server, *shlex.split(stream + arguments)]
    ran = _run(partial(main, command), tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_every_command_is_run_by_some_test() -> None:
    seen = {" ".join(shlex.split(command)[:2]) for _, command in commands()}
    assert {name.removeprefix(".venv/bin/") for name in seen} == set(RUN_BY)
    for place in RUN_BY.values():
        assert (ROOT / place).is_file(), place


@pytest.mark.parametrize(
    ("block", "command"), list(commands()), ids=[command for _, command in commands()]
)
def test_a_documented_command_line_is_understood(block: Block, command: str) -> None:
    """Options exist and arguments are accepted; nothing is executed."""
    words = [word.removeprefix(".venv/bin/") for word in shlex.split(command)]
    if words[0] == "make":
        recipes = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        assert words[1] in recipes, block.place
        return
    if ">" in words:
        words = words[: words.index(">")]
    SUBCOMMANDS[words[1]].load().make_context(words[1], words[2:])


def test_the_tenants_example_is_accepted(tmp_path: Path) -> None:
    (block,) = (block for block in blocks("toml") if "configuration.md" in block.place)
    path = tmp_path / "tenants.toml"
    path.write_text(block.text, encoding="utf-8")
    assert [tenant.id for tenant in tenants([], path)] == ["alice", "bob"]


def test_the_clusters_of_the_pages_are_accepted(tmp_path: Path) -> None:
    written = [block.text for block in blocks("yaml")]
    example = (ROOT / "examples" / "cluster" / "local.yaml").read_text("utf-8")
    assert written
    for text in (*written, example):
        path = tmp_path / "cluster.yaml"
        path.write_text(text, encoding="utf-8")
        assert read_cluster(path, cluster_commands()).name == "local"


def options(*names: str) -> set[str]:
    """All options of the commands ``names``, by default of every command."""
    return {
        option
        for name in names or SUBCOMMANDS
        for param in SUBCOMMANDS[name].load().params
        for option in (*param.opts, *param.secondary_opts)
    }


def test_other_servers_options_are_translated_to_ours() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text("utf-8")
    rows = re.findall(r"^\| (`--.*) \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 8
    for theirs, ours in rows:
        for option in re.findall(r"--[a-z-]+", theirs if ours == "the same" else ours):
            assert option in options("serve"), option


OF_OTHERS = {
    "--version", "--help", "--quiet", "--disable-pip-version-check", "--only-binary", "--platform",
    "--implementation", "--abi", "--find-links", "--dest", "--requirement", "--no-deps",
    "--local-dir", "--install-completion", "--show-completion",
}  # fmt: skip
"""Those of every command, pip's, those of the hub's command 'hf', and Typer's own."""


def test_an_error_message_names_only_options_that_exist() -> None:
    named = {one.name for program in LIBRARY.values() for one in program.parameters}
    known = options() | {f"--{name.replace('_', '-')}" for name in named}
    for path in (ROOT / "src" / "quire").rglob("*.py"):
        if path.name == "foreign.py":
            continue  # it has those of other servers
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]\b", path.read_text("utf-8")):
            assert option in known | OF_OTHERS, f"{path.name} names {option}"

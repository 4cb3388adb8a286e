"""Shipped programs that have children or ask an encoder outlive their engine, wherever it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from string import printable
from typing import Any

import pytest
import tokenizers
from fake_node import TENANT, StartNode, fake_config
from sandbox_node import needs_sandbox, sandbox_config, sandbox_node

from quire.core.batch import Batch
from quire.core.batch_result import BatchResult
from quire.core.config import EncoderConfig, EngineConfig
from quire.core.ids import ModelId
from quire.engine.encoders.text import EncoderTexts
from quire.node import Node, RestartLimits
from quire.node.encoders.transport import EncoderTransports, in_process_encoder
from quire.node.transports import InProcessTransport
from quire.programs.library import LIBRARY
from quire.testing import FakeEncoder, FakeEngine, FakeTokenizer, ScriptedModel, fake_pool

pytestmark = pytest.mark.timeout(300)

RESTARTS = RestartLimits(first_pause_s=0.0, max_losses=1_000)


class Engines:
    """Engines that say what ``answer`` says. ``fails_at``: the engine is lost, once, with the
    message that makes the tokens which it has sampled at least so many. (How many messages a
    program takes depends on when its calls come, how many tokens does not.)"""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self._answer = answer
        self.num_tokens = 0
        self.fails_at: int | None = None
        self.num_lost = 0

    def begin(self, fails_at: int | None) -> None:
        """Count the tokens from here on."""
        self.num_tokens, self.fails_at = 0, fails_at

    def executed(self, result: BatchResult) -> None:
        if result.sequences is not None:
            self.num_tokens += len(result.sequences.tokens)
        if self.fails_at is not None and self.num_tokens >= self.fails_at:
            self.fails_at = None
            self.num_lost += 1
            raise RuntimeError("lost by the test")

    def transport(self, config: EngineConfig) -> InProcessTransport:
        script = ScriptedModel(self._answer, FakeTokenizer())
        pool = fake_pool(page_size=16, num_blocks=256)
        world = self

        class Engine(FakeEngine):
            def execute(self, batch: Batch) -> BatchResult:
                result = super().execute(batch)
                world.executed(result)
                return result

        return InProcessTransport(
            config.name, lambda: Engine(pool, model=config.name, script=script)
        )


async def check(node: Node, engines: Engines, name: str, *args: str, num_places: int = 6) -> Any:
    """The same result, wherever the engine is lost once."""

    async def run() -> Any:
        return await node.launch(LIBRARY[name], args, tenant=TENANT).result()

    await run()  # so that all runs find what is cached on an engine that has lived
    engines.begin(None)
    expected = await run()
    num_tokens = engines.num_tokens
    for at in range(num_places):
        fails_at = num_tokens * at // num_places
        engines.begin(fails_at)
        assert await run() == expected, f"lost with token {fails_at} of {num_tokens}"
    assert engines.num_lost == num_places
    return expected


def colleagues(prompt: str) -> str:
    """A model with the skills of the agents, each recognised by its prompt."""
    question = prompt.rpartition("<|user|>")[2].partition("<|end|>")[0]
    if question.startswith("Classify"):
        return "Answer: search<|end|>"
    if "Tools:" in prompt:
        if prompt.endswith("<|assistant|>"):
            return "Thought: Look.\nAction: lookup(Kabo, age)\nObservation:"
        if prompt.endswith("Observation: 31\n"):
            return "Action: calc(31*3)\nObservation:"
        return f"Answer: {prompt.split('Observation: ')[-1].strip()}<|end|>"
    sums = {"What is 31 + 31?": "Answer: 62<|end|>", "What is 62 + 31?": "Answer: 93<|end|>"}
    return sums.get(question, "Answer: 31<|end|>")


async def test_a_swarm_answers_as_if_its_engine_had_lived(start_node: StartNode) -> None:
    engines = Engines(colleagues)
    node = await start_node(transport_factory=engines.transport, restart_limits=RESTARTS)
    question = "What is 3 times the age of Kabo?"
    result = await check(node, engines, "swarm", question, "Kabo: age 31.")
    assert result["answer"] == "93"
    assert len(result["letters"]) == 7


def coding(prompt: str) -> str:
    """Two blocks, of which the second needs what the first has set."""
    if "[0, 1, 4]" not in prompt:
        return "```\nx = [n * n for n in range(3)]\nprint(x)\n```\nResult:"
    if "total 5" not in prompt:
        return "```\nprint('total', sum(x))\n```\nResult:"
    return "Answer: 5<|end|>"


@needs_sandbox
@pytest.mark.e2e
async def test_the_interpreter_of_codeact_keeps_its_variables(sandbox_cache: Path) -> None:
    engines = Engines(coding)
    config = sandbox_config(sandbox_cache)
    node = sandbox_node(config, transport_factory=engines.transport, restart_limits=RESTARTS)
    await node.start()
    try:
        result = await check(node, engines, "codeact", "The sum of the squares?")
    finally:
        await node.stop()
    assert result["answer"] == "5"
    assert [block["result"] for block in result["blocks"]] == ["[0, 1, 4]", "total 5"]


def letter_texts(source: str) -> EncoderTexts:
    vocab = {letter: number for number, letter in enumerate(printable)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    return EncoderTexts(tokenizer, 64, "")


async def test_retrieval_reads_what_it_had_found(start_node: StartNode) -> None:
    engines = Engines(lambda prompt: f"It is in {len(prompt)} letters that one reads of it.<|end|>")
    cores = {"embedder": FakeEncoder(dimensions=16)}
    encoders = tuple(EncoderConfig(source=name, name=ModelId(name)) for name in cores)
    node = await start_node(
        fake_config(encoders=encoders),
        transport_factory=engines.transport,
        restart_limits=RESTARTS,
        encoder_transports=EncoderTransports(
            lambda encoder, _: in_process_encoder(encoder.name, lambda: cores[encoder.name]),
            letter_texts,
        ),
    )
    passages = json.dumps(["the job of Kabo is baker", "the age of Lin is 31", "a dog ran"])
    result = await check(node, engines, "retrieval", "who is a baker", passages, "2")
    assert len(result["read"]) == 2

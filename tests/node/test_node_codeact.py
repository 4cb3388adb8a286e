"""CodeAct on a node with a real sandbox: the code that the model writes really runs, confined."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_node import TENANT
from sandbox_node import needs_sandbox, sandbox_config, sandbox_node

from quire.core.config import EngineConfig
from quire.core.errors import ProgramCancelled, ProgramFailed
from quire.core.quotas import Quotas
from quire.node import Node
from quire.node.transports import InProcessTransport
from quire.programs.library.agents.codeact import Interpreter, codeact
from quire.programs.sdk import inferlet
from quire.testing import FakeEngine, FakeTokenizer, ScriptedModel, fake_pool

pytestmark = [needs_sandbox, pytest.mark.e2e, pytest.mark.timeout(300)]

Says = Callable[[str], str]


class Script:
    """What the node's model says; each test sets ``answer``."""

    def __init__(self) -> None:
        self.answer: Says = lambda prompt: "Nothing."

    def transport(self, config: EngineConfig) -> InProcessTransport:
        model = ScriptedModel(lambda prompt: self.answer(prompt), FakeTokenizer())
        pool = fake_pool(page_size=16, num_blocks=256)
        return InProcessTransport(
            config.name, lambda: FakeEngine(pool, model=config.name, script=model)
        )


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
async def node(script: Script, sandbox_cache: Path) -> AsyncIterator[Node]:
    node = sandbox_node(sandbox_config(sandbox_cache), transport_factory=script.transport)
    await node.start()
    yield node
    await node.stop()


async def results(node: Node, *blocks: str) -> list[str]:
    """What one interpreter says to each block."""

    @inferlet("blocks")
    async def run(api: Any) -> list[str]:
        async with Interpreter(api) as interpreter:
            return [await interpreter.run(block) for block in blocks]

    told: list[str] = await node.launch(run, tenant=TENANT).result()
    return told


async def test_blocks_share_their_variables_and_errors_are_told(node: Node) -> None:
    told = await results(
        node,
        "import math\nx = [n * n for n in range(5)]\nprint(x, math.factorial(5))",
        "print(sum(x)); print('é')",
        "print('before')\n1 / 0",
        "print(y)",
        "raise SystemExit(3)",
        "def f(:",
        "print(x[-1])",
    )
    assert told[:2] == ["[0, 1, 4, 9, 16] 120", "30\né"]
    assert told[2] == "before\nerror: ZeroDivisionError: division by zero"
    assert told[3] == "error: NameError: name 'y' is not defined"
    assert told[4] == "error: SystemExit: 3"
    assert "SyntaxError" in told[5]
    assert told[6] == "16"


async def test_code_reaches_nothing_outside(node: Node, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("precious")
    told = await results(
        node,
        f"print(open({str(secret)!r}).read())",
        f"open({str(secret)!r}, 'w').write('gone')",
        "import subprocess; subprocess.run(['true'])",
        "import socket; socket.create_connection(('127.0.0.1', 80))",
        "import os; print(os.environ.get('PATH')); os.listdir('/')",
    )
    assert all("error: " in one for one in told), told
    assert "precious" not in "".join(told)
    assert secret.read_text() == "precious"


async def test_code_without_an_end_costs_only_its_interpreter(node: Node) -> None:
    told = await results(node, "x = 1", "while True: pass", "print('x' in globals())", "print(2)")
    assert told[0] == ""
    assert told[1].startswith("error: ")
    assert "computed for 1000 ms without awaiting" in told[1]
    assert told[2:] == ["False", "2"]


async def test_the_agent_writes_code_reads_the_result_and_answers(
    node: Node, script: Script
) -> None:
    def answer(prompt: str) -> str:
        if prompt.endswith("<|assistant|>"):
            return '```python\nword = "strawbery"\nprint(word.coun("r"))\n```\nResult:'
        if "AttributeError" in prompt.rpartition("Result:")[2]:
            return '```python\nprint(word.count("r"))\n```\nResult:'
        assert prompt.endswith("Result: 2\n"), prompt
        return "Answer: 2<|end|>"

    script.answer = answer
    result = await node.launch(codeact, ("How many r?",), tenant=TENANT).result()
    assert result["answer"] == "2"
    first, second = result["blocks"]
    assert first["result"].startswith("error: AttributeError: 'str' object has no attribute 'coun'")
    assert second["result"] == "2"
    (child,) = [record for record in node.programs(TENANT) if record.name == "interpreter"]
    with pytest.raises(ProgramCancelled):  # soon after its agent, which does not wait for it
        await node.program(child.id, TENANT).result()


async def test_an_interpreter_that_cannot_start_is_told_when_it_is_needed(node: Node) -> None:
    @inferlet("unused", quotas=Quotas(max_children=0))
    async def unused(api: Any, code: str = "") -> str:
        async with Interpreter(api) as interpreter:
            return await interpreter.run(code) if code else "nothing was run"

    assert await node.launch(unused, tenant=TENANT).result() == "nothing was run"
    with pytest.raises(ProgramFailed, match="descendants"):
        await node.launch(unused, ("print(1)",), tenant=TENANT).result()


async def test_a_turn_without_code_is_told_so_and_an_endless_one_ends(
    node: Node, script: Script
) -> None:
    script.answer = lambda prompt: "I do not know. Result:"
    result = await node.launch(codeact, ("How?",), tenant=TENANT).result()
    assert result["answer"] == ""
    assert {block["result"] for block in result["blocks"]} == {
        "error: write the code between ``` marks"
    }

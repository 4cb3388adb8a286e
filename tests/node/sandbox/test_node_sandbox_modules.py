"""Compiled guests: the rings, the SDK's example, and modules that lie about their memory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from fake_node import TENANT
from sandbox_node import needs_sandbox, sandbox_config, sandbox_node
from wasm_programs import COMMANDS, DATA, command, echo, escaped, issuing, module

from quire.core.errors import ProgramCancelled, QuireError
from quire.node import Node, ProgramHandle
from quire.programs.library.completion.text_completion import text_completion
from quire.programs.sandbox.module.abi import GuestOp

pytest.importorskip("wasmtime", reason="the extra 'sandbox' is not installed")

pytestmark = [
    pytest.mark.e2e,
    needs_sandbox,
    pytest.mark.timeout(400),  # the first one builds the component
    pytest.mark.asyncio(loop_scope="module"),
]

SDK = Path(__file__).parents[3] / "sdk" / "c"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(sandbox_cache: Path) -> AsyncIterator[Node]:
    config = sandbox_config(
        sandbox_cache, max_turn_ms=300, max_memory_bytes=64 << 20, max_calls_per_s=100
    )
    node = sandbox_node(config)
    await node.start()
    yield node
    await node.stop()


async def launch(node: Node, code: bytes, *args: str) -> ProgramHandle:
    return node.launch(await node.inspect(code), args, tenant=TENANT)


async def messages_of(handle: ProgramHandle) -> list[str]:
    attachment = handle.attach()
    try:
        return [message.text async for message in attachment]
    finally:
        attachment.close()


async def error_of(node: Node, code: bytes, *args: str) -> str:
    handle = await launch(node, code, *args)
    with pytest.raises(QuireError) as caught:
        await handle.result()
    return caught.value.message


async def test_a_module_receives_sends_and_ends(node: Node) -> None:
    handle = await launch(node, echo(), "an argument")
    assert handle.name == "echo"
    await handle.send("hällo")
    assert await messages_of(handle) == ["hällo"]
    assert await handle.result() == "done"
    used = handle.record().used
    assert used is not None
    assert used.guest_cpu_s is not None
    assert used.guest_cpu_s > 0
    assert used.guest_memory_bytes == 1 << 16, "one page"


async def test_a_module_without_a_manifest_is_named_by_its_hash(node: Node) -> None:
    program = await node.inspect(issuing(command(GuestOp.SLEEP, id=1, a=1)))
    assert program.name == f"module-{program.digest[:8]}"


async def test_the_end_of_the_input_is_an_answer(node: Node) -> None:
    handle = await launch(node, issuing(command(GuestOp.RECEIVE, id=1)))
    handle.signal("end_of_input")
    assert await handle.result() is None


async def test_a_sleeping_module_wakes(node: Node) -> None:
    handle = await launch(node, issuing(command(GuestOp.SLEEP, id=1, a=1)))
    assert await handle.result() is None


async def test_a_module_is_told_to_end(node: Node) -> None:
    handle = await launch(node, issuing(command(GuestOp.SLEEP, id=1, a=3_600_000)))
    handle.terminate("enough")
    with pytest.raises(ProgramCancelled, match="enough"):
        await handle.result()


async def test_what_a_module_logs_is_its_log(node: Node) -> None:
    text = "from within"
    handle = await launch(
        node,
        issuing(
            command(GuestOp.LOG, a=1, address=DATA, length=len(text)),
            command(GuestOp.SLEEP, id=1),
            data=f'(data (i32.const {DATA}) "{text}")',
        ),
    )
    await handle.result()
    assert ("error", text) in [(line.level, line.text) for line in handle.logs()]


async def test_standard_output_is_the_log(node: Node) -> None:
    vector = escaped((DATA + 16).to_bytes(4, "little") + (5).to_bytes(4, "little"))
    printing = module(
        imports="""
          (import "wasi_snapshot_preview1" "fd_write"
            (func $write (param i32 i32 i32 i32) (result i32)))""",
        data=f"""
          (data (i32.const {DATA}) "{vector}") (data (i32.const {DATA + 16}) "hello")
          (data (i32.const {COMMANDS}) "{escaped(command(GuestOp.END))}")""",
        start=f"""
          (drop (call $write (i32.const 1) (i32.const {DATA}) (i32.const 1) (i32.const 16)))
          (i32.const 1)""",
    )
    handle = await launch(node, printing)
    await handle.result()
    assert "hello" in [line.text for line in handle.logs()]


HIGH = (1 << 32) - 1
ONES = "\\ff" * 16
LIES = {
    "text behind the memory": issuing(command(GuestOp.SEND, id=1, address=65_530, length=7)),
    "text around the end": issuing(command(GuestOp.SEND, id=1, address=HIGH, length=2)),
    "all of it": issuing(command(GuestOp.TOKENIZE, id=1, address=1, length=HIGH)),
    "many tokens": issuing(command(GuestOp.DETOKENIZE, id=1, b=HIGH, address=8)),
    "many ids": issuing(command(GuestOp.ALLOC_PAGES, id=1, a=1, b=1, c=HIGH)),
    "a short head": issuing(command(GuestOp.DECODE, id=1, a=1, address=DATA, length=8)),
    "a long list": issuing(
        command(GuestOp.FORWARD, id=1, a=1, address=DATA, length=16),
        data=f'(data (i32.const {DATA}) "{ONES}")',
    ),
    "words too many": issuing(command(GuestOp.FORWARD, id=1, a=1, address=DATA, length=64)),
    "no operation": issuing(command(999, id=1)),
    "no model": issuing(command(GuestOp.CREATE_QUEUE, a=1, b=77)),
    "one id twice": issuing(*[command(GuestOp.SYNCHRONIZE, id=5, a=1)] * 2),
    "no text": issuing(
        command(GuestOp.SEND, id=1, address=DATA, length=2),
        data=f'(data (i32.const {DATA}) "\\ff\\ff")',
    ),
    "more commands than its ring": module(start="(i32.const 9)"),
    "minus one command": module(start="(i32.const -1)"),
    "nothing to wait for": module(),
    "an area behind the memory": module(io="(i32.const 65530)"),
    "an area at minus one": module(io="(i32.const -1)"),
    "a ring behind the memory": module(data='(data (i32.const 64) "\\00\\00\\ff\\ff")'),
    "an inbox behind the memory": module(data='(data (i32.const 80) "\\00\\ff\\00\\00")'),
    "rings without end": module(data='(data (i32.const 68) "\\ff\\ff\\ff\\7f")'),
    "an endless loop": module(start="(loop (br 0)) (i32.const 0)"),
    "endless recursion": module(functions="(func $f (call $f))", start="(call $f) (i32.const 0)"),
    "a trap": module(start="(unreachable)"),
    "a file": module(
        imports='(import "wasi_snapshot_preview1" "path_open" (func $open (result i32)))',
        start="(call $open)",
    ),
    "a socket": module(
        imports='(import "wasi_snapshot_preview1" "sock_accept" (func $s (result i32)))',
        start="(call $s)",
    ),
    "another module": module(
        imports='(import "env" "system" (func $system (result i32)))', start="(call $system)"
    ),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_module_that_lies_ends_alone(node: Node, lie: str) -> None:
    bystander = await launch(node, echo())
    assert await error_of(node, LIES[lie])
    await bystander.send("still here")
    assert await bystander.result() == "done"


async def test_memory_grows_to_its_limit(node: Node) -> None:
    """``memory.grow`` fails beyond it, as the module is told; the rings are found after a move."""
    code = module(
        data=f'(data (i32.const {COMMANDS}) "{escaped(command(GuestOp.SLEEP, id=1))}")',
        start="""
          (drop (memory.grow (i32.const 500)))
          (if (i32.ne (memory.grow (i32.const 65000)) (i32.const -1)) (then (unreachable)))
          (i32.const 1)""",
        poll=f"""
          (i32.store (i32.const {COMMANDS}) (i32.const {int(GuestOp.END)}))
          (i32.store offset=28 (i32.const {COMMANDS}) (i32.const 0))
          (i32.const 1)""",
    )
    assert await (await launch(node, code)).result() is None


async def test_tables_grow_to_their_limit(node: Node) -> None:
    """They lie outside the memory that is bounded."""
    code = module(
        data=f'(data (i32.const {COMMANDS}) "{escaped(command(GuestOp.END))}")',
        functions="(table $t 1 funcref)",
        start="""
          (if (i32.ne (table.grow $t (ref.null func) (i32.const 60000000)) (i32.const -1))
            (then (unreachable)))
          (i32.const 1)""",
    )
    assert await (await launch(node, code)).result() is None


async def test_a_start_function_may_print(node: Node) -> None:
    """Where its memory is cannot be known yet: it is told that the address is wrong."""
    code = module(
        imports="""
          (import "wasi_snapshot_preview1" "fd_write"
            (func $write (param i32 i32 i32 i32) (result i32)))""",
        data=f'(data (i32.const {COMMANDS}) "{escaped(command(GuestOp.END))}")',
        functions="""
          (func $init
            (if (i32.eqz (call $write (i32.const 1) (i32.const 8) (i32.const 1) (i32.const 16)))
              (then (unreachable))))
          (start $init)""",
        start="(i32.const 1)",
    )
    assert await (await launch(node, code)).result() is None


async def test_a_turn_names_so_many_bytes(node: Node) -> None:
    code = issuing(
        *[command(GuestOp.LOG, address=0, length=2 << 20)] * 5,
        memory='(memory (export "memory") 40)',
    )
    assert "name 10485760 bytes; at most 8388608" in await error_of(node, code)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (b"\0asm", "is not valid: .*unexpected end"),
        (b"\0asm\1\0\0\0", "exports no function quire_abi_1"),
        (module(memory="(memory 1)"), "exports no memory"),
        (echo('{"name": 5}'), "manifest cannot be read"),
        (echo('{"name": "x", "traits": {"Core": 99}}'), "version 99 of the trait Core"),
        (module(memory='(memory (export "memory") 60000)'), "memory"),
    ],
)
async def test_what_is_no_program_is_refused(node: Node, code: bytes, words: str) -> None:
    with pytest.raises(QuireError, match=f"(?s){words}"):
        await node.inspect(code)


async def test_a_flood_of_sends_is_over_its_quota(node: Node) -> None:
    flooding = module(
        data=f'(data (i32.const {COMMANDS}) "{escaped(command(GuestOp.SLEEP, id=1) * 8)}")',
        start="(i32.const 8)",
        poll="(i32.const 8)",
    )
    assert "more than 100 calls within a second" in await error_of(node, flooding)


async def test_the_example_of_the_c_sdk_completes(node: Node, tmp_path: Path) -> None:
    """To the same text as the library's program of the same kind."""
    target = tmp_path / "complete.wasm"
    command_line = [
        sys.executable, "-m", "ziglang", "cc", "--target=wasm32-freestanding", "-O2", "-nostdlib",
        "-Wall", "-Wextra", "-Werror", "-Wl,--no-entry", "-I", str(SDK), "-o", str(target),
        str(SDK / "examples" / "complete.c"),
    ]  # fmt: skip
    built = await asyncio.create_subprocess_exec(*command_line)
    assert await built.wait() == 0
    handle = await launch(node, target.read_bytes(), "hello")
    reference = node.launch(text_completion, ["hello", "16"], tenant=TENANT)
    result = await handle.result()
    assert handle.name == "complete"
    assert (await messages_of(handle))[-1] == "16 tokens"
    assert result == await reference.result()

"""Compiled guests as text, assembled by wasmtime: small ones, and ones that lie."""

from __future__ import annotations

import struct

IO, COMMANDS, EVENTS, INBOX, DATA = 64, 1024, 2048, 4096, 8192
"""Where the modules below keep things. The inbox has 256 bytes, each ring 8 entries."""

RECEIVE, SEND, END = 2, 1, 7


def module(
    *,
    data: str = "",
    start: str = "(i32.const 0)",
    poll: str = "(i32.const 0)",
    io: str = "(i32.const 64)",
    functions: str = "",
    imports: str = "",
    memory: str = '(memory (export "memory") 1)',
) -> bytes:
    """A module of these parts. ``start`` and ``poll`` are the bodies of those exports."""
    import wasmtime

    area = struct.pack("<8I", COMMANDS, 8, EVENTS, 8, INBOX, 256, 0, 0)
    return bytes(
        wasmtime.wat2wasm(
            f"""
            (module
              {imports}
              {memory}
              (data (i32.const {IO}) "{escaped(area)}")
              {data}
              {functions}
              (func (export "quire_abi_1") (result i32) {io})
              (func (export "quire_start") (param $args i32) (param $length i32) (result i32)
                {start})
              (func (export "quire_poll") (param $count i32) (result i32) {poll}))
            """
        )
    )


def escaped(content: bytes) -> str:
    return "".join(f"\\{byte:02x}" for byte in content)


def command(
    op: int, *, id: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0,
    address: int = 0, length: int = 0,
) -> bytes:  # fmt: skip
    return struct.pack("<HHIIIIIII", op, 0, id, a, b, c, d, address, length)


def issuing(*commands: bytes, data: str = "", **parts: str) -> bytes:
    """A module that issues ``commands`` when it starts, and ends when anything comes."""
    ring = escaped(b"".join(commands))
    return module(
        data=f'(data (i32.const {COMMANDS}) "{ring}") {data}',
        start=f"(i32.const {len(commands)})",
        functions=f"""
          (func $end (result i32)
            (i32.store (i32.const {COMMANDS}) (i32.const {END}))
            (i32.store offset=8 (i32.const {COMMANDS}) (i32.const 0))
            (i32.store offset=28 (i32.const {COMMANDS}) (i32.const 0))
            (i32.const 1))""",
        poll="(call $end)",
        **parts,
    )


def echo(manifest: str = '{"name": "echo"}') -> bytes:
    """Waits for a message, sends it back, and ends with the result ``done``."""
    receive = escaped(command(RECEIVE, id=1))
    send = escaped(command(SEND, id=2))
    return module(
        data=f"""
          (data (i32.const {COMMANDS}) "{receive}")
          (data (i32.const {DATA}) "{escaped(manifest.encode())}\\00")
          (data (i32.const {DATA + 512}) "{send}")
          (data (i32.const {DATA + 600}) "\\"done\\"")""",
        functions=f"""
          (func (export "quire_manifest") (result i32) (i32.const {DATA}))
          (func $answer (result i32)
            (memory.copy (i32.const {COMMANDS}) (i32.const {DATA + 512}) (i32.const 32))
            (i32.store offset=24 (i32.const {COMMANDS}) (i32.load offset=24 (i32.const {EVENTS})))
            (i32.store offset=28 (i32.const {COMMANDS}) (i32.load offset=28 (i32.const {EVENTS})))
            (i32.const 1))
          (func $end (result i32)
            (i32.store (i32.const {COMMANDS}) (i32.const {END}))
            (i32.store offset=24 (i32.const {COMMANDS}) (i32.const {DATA + 600}))
            (i32.store offset=28 (i32.const {COMMANDS}) (i32.const 6))
            (i32.const 1))""",
        start="(i32.const 1)",
        poll=f"""
          (if (result i32)
              (i32.eq (i32.load16_u (i32.const {EVENTS})) (i32.const {RECEIVE}))
            (then (call $answer)) (else (call $end)))""",
    )

"""Outputs that fit a grammar."""

from __future__ import annotations

from library_run import run


async def test_json_output_parses() -> None:
    result, _, _ = await run(
        "json_output", "Who?", answer=lambda _: '{"name": "Kabo", "age": 31}<|end|>'
    )
    assert result["answer"] == {"name": "Kabo", "age": 31}

"""The process that compiles clients' grammars. Run by path, never imported by the server.

Owns nothing but its own life: it lowers its memory limit, then answers one JSON line per JSON line
until its input closes. It must import nothing of ours, so that it starts fast and stays small; a
grammar that makes it explode kills this process and no other.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable

import llguidance

NUM_TRIAL_TOKENS = 32
"""How far the matcher is driven: some grammars compile at once and explode on their first steps."""

MAX_ERROR_CHARS = 1000


def compile_error(kind: str, source: str, tokenizer: llguidance.LLTokenizer) -> str | None:
    """Why the grammar cannot be used, or None. Compiles it and takes a few steps through it."""
    compilers: dict[str, Callable[[str], str]] = {
        "json_schema": llguidance.LLMatcher.grammar_from_json_schema,
        "regex": llguidance.LLMatcher.grammar_from_regex,
        "lark": llguidance.LLMatcher.grammar_from_lark,
    }
    try:
        matcher = llguidance.LLMatcher(tokenizer, compilers[kind](source), log_level=0)
        for _ in range(NUM_TRIAL_TOKENS):
            if matcher.is_error() or matcher.is_stopped():
                break
            allowed = matcher.compute_bitmask()
            first = _first_bit(allowed)
            if first is None or not matcher.consume_token(first):
                break
    except (ValueError, RuntimeError, MemoryError, RecursionError) as exc:
        return str(exc) or type(exc).__name__
    return matcher.get_error() if matcher.is_error() else None


def _first_bit(mask: bytes) -> int | None:
    """The highest allowed token: letters and open classes rather than closing brackets."""
    for index in range(len(mask) - 1, -1, -1):
        if mask[index]:
            return index * 8 + mask[index].bit_length() - 1
    return None


def main() -> None:
    max_memory_bytes = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (max_memory_bytes, max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tokenizer = llguidance.LLTokenizer("byte")
    for line in sys.stdin.buffer:
        question = json.loads(line)
        error = compile_error(question["kind"], question["source"], tokenizer)
        if error is not None:
            # what follows is the parser's internal state: large, and of no use to a client
            error = error.partition("\n<state>")[0][:MAX_ERROR_CHARS]
        answer = {"error": error}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

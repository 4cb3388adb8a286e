"""The texts that a program has in pages, as others may compute or receive them.

Owns how pages are put together to texts. A text is what full pages of plain tokens hold, from the
first token on; of several texts with a common beginning, each is returned whole. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.control.engines.state import EngineState
from quire.control.memory.content import ChainNode
from quire.control.memory.pages import Page
from quire.control.programs.program import Program
from quire.core.ids import EngineId, ModelId


@dataclass(frozen=True, slots=True)
class HeldText:
    """One text in whole pages. ``adapter``: the name of the adapter that computed them."""

    model: ModelId
    adapter: str | None
    tokens: tuple[int, ...]


def held_texts(
    program: Program, engines: Mapping[EngineId, EngineState], max_tokens: int
) -> tuple[HeldText, ...]:
    """The texts of ``program``, the longest first, up to ``max_tokens`` tokens in all. None begins
    with another one."""
    ends: dict[tuple[EngineId, int, bytes], ChainNode] = {}
    inner: set[tuple[EngineId, int, bytes]] = set()
    for page in program.pages.values():
        content, node = page.content, _last_full(page)
        if content is None or node is None or page.engine not in engines:
            continue
        engine, adapter = page.engine, content.adapter
        ends[engine, adapter, node.key] = node
        before = node.parent
        while before is not None and (engine, adapter, before.key) not in inner:
            inner.add((engine, adapter, before.key))
            before = before.parent
    found: list[HeldText] = []
    left = max_tokens
    for place, node in sorted(ends.items(), key=lambda end: end[1].depth, reverse=True):
        if place in inner:
            continue
        tokens = tuple([token for one in node.path() for token in one.tokens])
        if len(tokens) <= left:
            left -= len(tokens)
            engine_id, index, _ = place
            state = engines[engine_id]
            name = None if index < 0 else state.info.adapters[index].name
            found.append(HeldText(state.model, name, tokens))
    return tuple(found)


def _last_full(page: Page) -> ChainNode | None:
    """The last full page of the text that ``page`` ends; None if it holds no plain text."""
    if not page.fill or not page.is_canonical:
        return None
    content = page.content
    assert content is not None
    is_full = content.node is not None and page.fill == len(content.tokens)
    return content.node if is_full else content.parent

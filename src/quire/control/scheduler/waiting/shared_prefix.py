"""Counts the blocks of waiting prompts that are already on the device, in pages that others hold.

Such pages cost the pool nothing more. Cached pages without a holder are not counted: mapping one
takes it from what is available. Owns the chain keys of prompts that were looked up lately; the
figures are estimates, exact when the decode begins.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.control.engines.state import EngineState
from quire.control.memory.content import Content
from quire.control.memory.packed_tokens import TOKEN_BYTES
from quire.control.memory.pages import canonical_chain
from quire.control.programs.program import Entry
from quire.core.commands import Decode
from quire.core.errors import InvalidArgument

_MAX_KEPT = 256
"""The number of prompts whose keys are kept."""


class SharedPrefixes:
    """The shared prefixes of the decodes of one engine that have not begun."""

    def __init__(self, engine: EngineState) -> None:
        self._engine = engine
        self._keys: dict[Entry, list[bytes]] = {}

    def num_held(self, entries: Iterable[Entry], without: Iterable[Content] = ()) -> int:
        """The number of blocks that the prompts of ``entries`` need not be given, because programs
        hold them. ``without``: contents that are not counted."""
        index, left_out = self._engine.memory.index, set(map(id, without))
        num_held = 0
        for entry in entries:
            if entry.run is not None:
                continue  # it has mapped the pages that were there
            for key in self._keys_of(entry):
                content = index.find(key)
                if content is None:
                    break
                if content.num_refs and content.block is not None and id(content) not in left_out:
                    num_held += 1
        return num_held

    def _keys_of(self, entry: Entry) -> list[bytes]:
        keys = self._keys.get(entry)
        if keys is None:
            if len(self._keys) >= _MAX_KEPT:
                self._keys.clear()
            command = entry.command
            assert isinstance(command, Decode)
            keys = self._keys[entry] = self._chain(entry, command)
        return keys

    def _chain(self, entry: Entry, command: Decode) -> list[bytes]:
        """The keys of the prompt's full pages, as far as a begun decode would look for them."""
        if not command.cache or command.num_prompt_logprobs is not None:
            return []
        try:
            adapter = self._engine.adapter_index(command.adapter)
        except InvalidArgument:  # the engine came back without it: the decode will fail
            return []
        size, pages = self._engine.page_size, entry.program.pages
        context = [pages[page] for page in command.context]
        tail = next((p for page in command.output if (p := pages[page]).fill < size), None)
        if tail is None or tail.fill or any(page.is_lost for page in context):
            return []
        chain = canonical_chain(context, size, adapter)
        if chain is None or chain.num_tokens != command.position:
            return []
        index = self._engine.memory.index
        root = index.root_key(entry.program.tenant, adapter)
        first = root if chain.parent is None else chain.parent.key
        prompt = entry.queue.pack(command.tokens)
        assert prompt is not None, "tokens are checked when their command is issued"
        return index.keys(first, prompt.packed[:-TOKEN_BYTES])

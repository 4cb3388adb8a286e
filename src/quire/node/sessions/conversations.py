"""Infers the session of a prompt when its client names none.

A session is inferred only from a complete turn with an answer of this node: the prompt must begin
with exactly the turns of a finished call and its answer. Shared system prompts, few-shot examples
and invented histories therefore never join a session. Owns digests, no text.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from quire.core.ids import ProgramId, TenantId


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """One turn as canonical text. A chat message that the node sends and the same message sent back
    by the client must give the same text, tool calls included."""

    role: str
    content: str


class ConversationIndex:
    """Digests of conversations up to an answer and including it; the least recently used are
    dropped."""

    def __init__(self, max_entries: int = 16_384) -> None:
        self._max_entries = max_entries
        self._programs: OrderedDict[bytes, ProgramId] = OrderedDict()

    def __len__(self) -> int:
        return len(self._programs)

    def remember(
        self,
        tenant: TenantId,
        turns: Sequence[ConversationTurn],
        answer: ConversationTurn,
        program: ProgramId,
    ) -> None:
        """Note that ``program`` has answered ``turns`` with ``answer``; a later program with the
        same conversation replaces it."""
        *_, digest = _chain(tenant, [*turns, answer])
        self._programs[digest] = program
        self._programs.move_to_end(digest)
        while len(self._programs) > self._max_entries:
            self._programs.popitem(last=False)

    def find(self, tenant: TenantId, turns: Sequence[ConversationTurn]) -> ProgramId | None:
        """The program with the latest answer that ``turns`` continue."""
        found = None
        for digest in _chain(tenant, turns):
            if digest in self._programs:
                found = digest
        if found is None:
            return None
        self._programs.move_to_end(found)
        return self._programs[found]


def _chain(tenant: TenantId, turns: Iterable[ConversationTurn]) -> Iterator[bytes]:
    """A digest after each turn, over all turns so far; every part is preceded by its length."""
    state = hashlib.blake2b(digest_size=16)
    _add(state, tenant)
    for turn in turns:
        _add(state, turn.role)
        _add(state, turn.content)
        yield state.copy().digest()


def _add(state: hashlib.blake2b, text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    state.update(len(raw).to_bytes(8, "little"))
    state.update(raw)

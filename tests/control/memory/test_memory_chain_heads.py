"""First pages of prompts: whose prefix index has which, while pages come and go."""

from __future__ import annotations

from quire.control.memory.chain_heads import ChainHeads
from quire.control.memory.content import ChainNode, Content
from quire.control.memory.prefix_index import PrefixIndex
from quire.core.ids import EngineId, TenantId

ONE, OTHER = EngineId("one"), EngineId("other")
TENANT = TenantId("t")


def chain(index: PrefixIndex, *pages: list[int]) -> list[Content]:
    """Indexed pages of two tokens, one behind the other."""
    parent: ChainNode | None = None
    contents = []
    for tokens in pages:
        content = Content(parent, canonical=True)
        content.tokens = tokens
        content.node = parent = index.child(TENANT, parent, tokens)
        content.num_refs = 1
        assert index.insert(content)
        contents.append(content)
    return contents


def test_an_engine_is_a_holder_from_the_first_page_of_a_prompt_to_its_end() -> None:
    heads = ChainHeads()
    indexes = [PrefixIndex("m", 2, engine=name, heads=heads) for name in (ONE, OTHER)]
    held = [chain(index, [1, 2], [3, 4]) for index in indexes]
    first, second = (content.node.key for content in held[0] if content.node is not None)
    assert [*heads.holders(first)] == [ONE, OTHER]
    assert not heads.holders(second), "it is no first page"
    for index in indexes:
        index.check_invariants()
    indexes[0].remove(held[0][1])
    assert [*heads.holders(first)] == [ONE, OTHER]
    indexes[0].remove(held[0][0])
    assert [*heads.holders(first)] == [OTHER]
    indexes[1].clear()
    assert not heads.holders(first)
    assert heads.of(OTHER) == set()
    indexes[0].check_invariants()

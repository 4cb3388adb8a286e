"""Pages that a session keeps between calls: they outlast pressure, and stand in nobody's way."""

from __future__ import annotations

from functools import partial

from fake_node import TENANT, StartNode, fake_config, until

from quire.core.config import EngineConfig, TenantConfig
from quire.core.ids import TenantId
from quire.core.quotas import Quotas
from quire.node import Node, SessionHandle, SessionLimits
from quire.node.transports import InProcessTransport
from quire.programs.builtin import CompletionRequest, complete
from quire.testing import FakeEngine, FakeTokenizer, fake_pool

PAGE = 4
NUM_BLOCKS = 32


def small_transport(config: EngineConfig, num_host_blocks: int = 8) -> InProcessTransport:
    pool = fake_pool(page_size=PAGE, num_blocks=NUM_BLOCKS, num_host_blocks=num_host_blocks)
    return InProcessTransport(config.name, lambda: FakeEngine(pool, model=config.name))


async def run(
    session: SessionHandle, tokens: list[int], max_tokens: int = 1
) -> tuple[list[int], int]:
    """What was sampled, and how many tokens of the prompt were found in the cache."""
    asked = CompletionRequest(prompt=tuple(tokens), max_tokens=max_tokens, ignore_eos=True)
    call = session.call(complete, asked)
    sampled, num_cached = [], 0
    async for chunk in call:
        sampled += chunk.token_ids
        num_cached += chunk.num_cached_tokens
    await call.wait_closed()
    return sampled, num_cached


def prompt(text: str, num_tokens: int) -> list[int]:
    return FakeTokenizer().encode(text * num_tokens)[:num_tokens]


async def push_out(node: Node) -> None:
    """Other sessions run prompts that together fill the pool several times over."""
    for letter in "bcdefg":
        await run(node.session(TENANT, letter), prompt(letter, 24 * PAGE))


async def first_turn(node: Node) -> tuple[SessionHandle, list[int]]:
    session = node.session(TENANT, "kept")
    tokens = prompt("a", 4 * PAGE)
    sampled, _ = await run(session, tokens, 2 * PAGE)
    return session, [*tokens, *sampled]


async def test_kept_pages_are_found_after_others_have_filled_the_pool(
    start_node: StartNode,
) -> None:
    node = await start_node(transport_factory=small_transport)
    session, tokens = await first_turn(node)
    kept = session.keep(node.model(), tokens)
    assert kept is not None
    await push_out(node)
    assert kept.num_pages == 5, "24 tokens; the last one's page is left over"
    _, num_cached = await run(session, [*tokens, 7, 8])
    assert num_cached == 5 * PAGE


async def test_pages_that_nobody_keeps_are_not(start_node: StartNode) -> None:
    node = await start_node(transport_factory=partial(small_transport, num_host_blocks=0))
    session, tokens = await first_turn(node)
    await push_out(node)
    _, num_cached = await run(session, [*tokens, 7, 8])
    assert num_cached == 0


async def test_a_prompt_that_needs_the_whole_pool_runs_beside_kept_pages(
    start_node: StartNode,
) -> None:
    node = await start_node(transport_factory=small_transport)
    session, tokens = await first_turn(node)
    assert session.keep(node.model(), tokens) is not None
    other = node.session(TENANT, "large")
    sampled, _ = await run(other, prompt("z", (NUM_BLOCKS - 1) * PAGE), PAGE)
    assert len(sampled) == PAGE


async def test_release_and_the_sessions_end_give_everything_back(node: Node) -> None:
    session, tokens = await first_turn(node)
    kept, other = (session.keep(node.model(), tokens) for _ in range(2))
    assert kept is not None
    assert other is not None

    def num_held() -> int:
        return node.statistics().controller.engines[0].pool.num_held

    await until(node, lambda: num_held() == 5)
    kept.release()
    kept.release()
    assert kept.released
    session.end()
    assert other.released
    await until(node, lambda: not node.processes())
    assert num_held() == 0
    assert session.keep(node.model(), tokens) is None


async def test_an_idle_session_ends_with_what_it_keeps(start_node: StartNode) -> None:
    node = await start_node(session_limits=SessionLimits(ttl_s=0.01))
    session, tokens = await first_turn(node)
    session.keep(node.model(), tokens)
    await until(node, lambda: not node.processes())
    assert node.statistics().controller.engines[0].pool.num_held == 0


async def test_less_than_a_page_or_a_quota_of_pages_keeps_nothing(start_node: StartNode) -> None:
    """A quota belongs to the calls: what is kept would count against the next one."""
    limited = TenantConfig(TenantId("limited"), quotas=Quotas(max_pages=8))
    node = await start_node(fake_config(tenants=(limited, TenantConfig(TENANT))))
    assert node.session(TENANT, "short").keep(node.model(), [1] * PAGE) is None
    session = node.session(limited.id, "s")
    tokens = prompt("a", 4 * PAGE)
    await run(session, tokens)
    assert session.keep(node.model(), tokens) is None

"""Two nodes and a router on machines of their own, whose cables are pulled out.

Runs where network namespaces can be made (root: ``.ci/run``).
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster_processes import PATIENCE_S, QuireProcess
from network_namespaces import Machine, Refused, machines
from process_faults import Asked, Client

PORT = 8000
NUM_SENT = 15
"""Tokens that every prompt here has at least."""


@dataclass(frozen=True, slots=True)
class Cluster:
    nodes: Sequence[QuireProcess]
    router: QuireProcess
    machines: Sequence[Machine]
    """In the order of the nodes; the last one is the router's."""


@asynccontextmanager
async def cluster(places: Sequence[Machine]) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        key_file = directory / "cluster.key"
        key_file.touch(mode=0o600)
        key_file.write_text(secrets.token_hex(32))
        shared = ("--no-auth", "--cluster-key-file", str(key_file), "--drain-timeout", "1")
        serve = ["serve", "--dtype", "float32", "--num-threads", "1", "--kv-cache-bytes", "8MiB"]
        route = ["router", "--resume", "--probe-interval", "0.2", "--probe-timeout", "2"]
        route += ["--strategy", "disaggregated"]
        *homes, last = places
        nodes = []
        for number, home in enumerate(homes):
            serving = [*serve, *shared, "--data-host", home.address]
            node = QuireProcess(
                f"node-{number}", serving, directory, host=home.address, port=PORT,
                prefix=home.prefix,
            )  # fmt: skip
            nodes.append(node)
            route += ["--node", f"{node.name}={node.url}"]
        router = QuireProcess(
            "router", [*route, *shared], directory, host=last.address, port=PORT,
            prefix=last.prefix,
        )  # fmt: skip
        for process in (*nodes, router):
            stack.callback(process.stop)
            process.start()
        await asyncio.gather(*(process.ready() for process in (*nodes, router)))
        yield Cluster(nodes, router, places)


async def num_computed(node: QuireProcess) -> int:
    """Tokens that its engine has run."""
    return (await node.figures())["quire_batch_tokens_total"]


async def num_decodes(node: QuireProcess) -> int:
    return (await node.figures())["quire_num_requests_running"]


@pytest.mark.e2e
@pytest.mark.timeout(900)
async def test_a_cable_that_is_pulled_out_costs_a_client_a_pause() -> None:
    try:
        with machines(3) as places:
            places[0].move_away()
            async with cluster(places) as c:
                try:
                    await _pulled_out(c)
                except BaseException as exc:
                    for process in (*c.nodes, c.router):
                        exc.add_note(f"{process.name}:\n{process.log.read_text()[-3000:]}")
                    raise
    except Refused as exc:
        pytest.skip(f"no network namespaces here: {exc}")


async def _pulled_out(c: Cluster) -> None:
    (sender, receiver), place = c.nodes, c.machines[1]

    async def divided() -> tuple[Client, asyncio.Task[str]]:
        """A request whose prompt one node has computed and whose answer the other has begun: as
        soon as the router has found both."""
        while True:
            asked = Asked("/v1/completions", f"Over a cable, {secrets.token_hex(4)}.")
            client, num_before = Client(c.router.url, asked), await num_computed(sender)
            answer = asyncio.create_task(client.answer())
            begun = asyncio.create_task(client.received(1))
            await asyncio.wait({begun, answer}, return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            has_sent = await num_computed(sender) >= num_before + NUM_SENT
            if has_sent and await num_decodes(receiver) and not await num_decodes(sender):
                return client, answer
            await answer

    async def right(client: Client, answer: asyncio.Task[str]) -> bool:
        return await answer == await Client(sender.url, client.asked).answer()

    async with asyncio.timeout(PATIENCE_S):
        assert await right(*await divided())
        client, answer = await divided()
    place.pull()  # in the middle of an answer, and nobody is told
    assert not answer.done(), "the answer was too short to be lost"
    assert await right(client, answer)
    alone = Client(c.router.url, Asked("/v1/completions", "Over no cable."))
    assert await right(alone, asyncio.create_task(alone.answer()))
    place.plug()
    async with asyncio.timeout(PATIENCE_S):
        assert await right(*await divided())
    for node in c.nodes:
        await node.settled()

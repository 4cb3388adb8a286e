"""``/v1/microserving`` with images in the prompt: what the fake engines say depends on all they
saw, so the same tokens mean the same images."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from scripted_server import MODEL, TOKENIZER, RunningServer, running_server

from quire.client import Microserving
from quire.core.config import ServerConfig
from quire.core.engine_info import ImageInput
from quire.core.errors import InvalidArgument
from quire.testing import FakeEngine, fake_pool
from quire.testing.fake_engine.network import FakeNetwork

KEY = "0123456789abcdef"
CONFIG = ServerConfig(drain_timeout_s=1.0, sandbox_upload=False, cluster_key=KEY)
SIZE, EMBEDS = 16, 20
SEES = TOKENIZER.special_id("<|tool|>")
INPUT = ImageInput(
    num_embeds=EMBEDS, token=SEES, max_bytes=1000, max_pixels=1000, formats=("PNG", "JPEG")
)
PNG = b"\x89PNG\r\n\x1a\n"
FIRST = [(7 * i) % 150 + 20 for i in range(37)]
SECOND = [(5 * i) % 150 + 20 for i in range(9)]
LAST = [77, 78, 79]
PROMPT = [*FIRST, SEES, *SECOND, SEES, *LAST]
"""37 tokens of text, an image (37 to 57), 9 of text, an image (66 to 86), 3 of text."""
LENGTH = 89


def load(network: FakeNetwork, images: ImageInput | None = INPUT) -> Callable[[], FakeEngine]:
    pool = fake_pool(page_size=SIZE, num_blocks=256, max_batch_tokens=64)
    return lambda: FakeEngine(
        pool, tokenizer=TOKENIZER, model=MODEL, max_model_len=1024, images=images, network=network
    )


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[RunningServer, RunningServer]]:
    network = FakeNetwork()
    with (
        running_server(CONFIG, load=load(network)) as sender,
        running_server(CONFIG, load=load(network)) as receiver,
    ):
        yield sender, receiver


Calls = Callable[[Microserving, Microserving], Coroutine[Any, Any, Any]]


@pytest.fixture
def run(nodes: tuple[RunningServer, RunningServer]) -> Callable[[Calls], Any]:
    async def both(calls: Calls) -> Any:
        sender, receiver = (node.url for node in nodes)
        async with Microserving(sender, KEY) as first, Microserving(receiver, KEY) as second:
            return await calls(first, second)

    return lambda calls: asyncio.run(both(calls))


def urls(*names: bytes) -> list[str]:
    return [f"data:image/png;base64,{base64.b64encode(PNG + name).decode()}" for name in names]


async def generated(node: Microserving, prompt: list[int], *args: Any, **fields: Any) -> list[int]:
    fields = {"max_tokens": 6, "temperature": 0, "ignore_eos": True} | fields
    tokens: dict[int, list[int]] = {}  # by choice, whose chunks come in any order
    async for chunk in node.start_generate(prompt, *args, return_token_ids=True, **fields):
        for choice in chunk["choices"]:
            tokens.setdefault(choice["index"], []).extend(choice.get("token_ids") or [])
    return [token for index in sorted(tokens) for token in tokens[index]]


@pytest.mark.parametrize(
    ("end", "num_choices"), [(-1, 1), (57, 1), (66, 1), (86, 1), (37, 1), (20, 1), (-1, 2), (60, 2)]
)
def test_images_that_another_node_saw(
    run: Callable[[Calls], Any], end: int, num_choices: int
) -> None:
    """The receiver sees those behind ``end`` itself."""
    images = urls(b"cat%d" % end, b"dog%d" % num_choices)
    end %= LENGTH

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        ready = await receiver.prep_recv(PROMPT, end, images=images)
        address = ready["kv_addr_info"]
        assert ready["num_tokens"] + ready["matched_len"] == end
        assert ready["matched_len"] <= 32, "no page of an image is taken for another one's"
        sent = await sender.remote_send(PROMPT, address, 0, end, images=images)
        assert sent["num_tokens"] == ready["num_tokens"]
        fields = {"images": images, "n": num_choices}
        told = await generated(receiver, PROMPT, end, address, **fields)
        assert told == await generated(sender, PROMPT, **fields)
        assert len(told) == 6 * num_choices

    run(calls)


def test_other_images_are_other_tokens(run: Callable[[Calls], Any]) -> None:
    """The test above could not fail otherwise."""

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        told = [
            await generated(sender, PROMPT, images=urls(*names))
            for names in ((b"cat", b"dog"), (b"dog", b"cat"))
        ]
        assert told[0] != told[1]

    run(calls)


def test_a_lease_is_for_the_images_that_it_was_opened_for(run: Callable[[Calls], Any]) -> None:
    async def calls(sender: Microserving, receiver: Microserving) -> None:
        ready = await receiver.prep_recv(PROMPT, -1, images=urls(b"a", b"b"))
        with pytest.raises(InvalidArgument, match="not the one that the lease waits for"):
            await sender.remote_send(
                PROMPT, ready["kv_addr_info"], 0, -1, images=urls(b"a", b"other")
            )
        ready = await receiver.prep_recv(PROMPT, 60, images=urls(b"a", b"b"))
        await sender.remote_send(
            PROMPT, ready["kv_addr_info"], 0, 60, images=urls(b"a", b"other")
        )  # the second one stands behind it

    run(calls)


@pytest.mark.parametrize(
    ("end", "images", "message"),
    [
        (40, urls(b"a", b"b"), "lies within an image, from token 37 to 57"),
        (-1, urls(b"a"), "has 2 tokens for images"),
        (-1, ["https://example.org/a.png", *urls(b"b")], "nothing is fetched"),
        (-1, [*urls(b"b"), "data:image/png;base64,AAAA"], r"images\[1\]"),
        (200, urls(b"a", b"b"), "the prompt has 89 tokens"),
    ],
)
def test_images_that_cannot_be_are_refused(
    run: Callable[[Calls], Any], end: int, images: list[str], message: str
) -> None:
    async def calls(sender: Microserving, receiver: Microserving) -> None:
        with pytest.raises(InvalidArgument, match=message):
            await receiver.prep_recv(PROMPT, end, images=images)

    run(calls)

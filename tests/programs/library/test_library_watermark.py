"""The watermark: found with its key, invisible without, absent at a bias of zero."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from tiny_models import PROMPT, greedy, model_of, run
from transformers import LlamaForCausalLM

from quire.core.errors import InvalidArgument
from quire.node import Node
from quire.programs.api import Api
from quire.programs.library.decoding.watermark_detection import PROOF
from quire.programs.library.decoding.watermarking import Watermark, generate_marked
from quire.programs.sdk import Context

pytestmark = pytest.mark.asyncio(loop_scope="module")

MARK = Watermark("secret")
NUM_TOKENS = 120


async def marked(node: Node, bias: float, heat: float = 1.0, seed: int = 0) -> list[int]:
    async def program(api: Api) -> list[int]:
        async with Context(model_of(api, "tiny")) as ctx:
            return await generate_marked(
                ctx.fill(PROMPT), MARK, NUM_TOKENS, bias=bias, heat=heat, seed=seed
            )

    tokens: list[int] = await run(node, program)
    return tokens


async def test_no_bias_is_plain_decoding(
    tiny: Node, reference: Callable[[str], LlamaForCausalLM]
) -> None:
    assert await marked(tiny, 0.0, heat=0.0) == greedy(reference("llama"), PROMPT, NUM_TOKENS)
    other_key = Watermark("other")

    async def program(api: Api) -> list[int]:
        async with Context(model_of(api, "tiny")) as ctx:
            return await generate_marked(ctx.fill(PROMPT), other_key, 40, bias=0.0, heat=1.0)

    assert await run(tiny, program) == (await marked(tiny, 0.0))[:40]


async def test_the_mark_is_found_with_its_key_alone(tiny: Node) -> None:
    weak, strong = [await marked(tiny, bias) for bias in (2.0, 6.0)]
    assert min(len(weak), len(strong)) > 60
    assert PROOF < MARK.z_score(weak) < MARK.z_score(strong)
    assert abs(Watermark("guess").z_score(strong)) < 3
    assert abs(MARK.z_score(await marked(tiny, 0.0))) < 3
    middle = strong[20:60]  # neither the prompt nor the beginning is needed
    assert MARK.z_score(middle) > PROOF


async def test_a_greedy_text_may_be_marked_too(tiny: Node) -> None:
    assert MARK.z_score(await marked(tiny, 4.0, heat=0.0)) > PROOF


async def test_the_score_by_hand() -> None:
    tokens = [1, 2, 3, 4, 5, 2, 3]  # the pair 2, 3 counts once
    pairs = {(1, 2), (2, 3), (3, 4), (4, 5), (5, 2)}
    num_green = sum(MARK.is_green(before, token) for before, token in pairs)
    expected = (num_green - 5 * 0.25) / math.sqrt(5 * 0.25 * 0.75)
    assert MARK.z_score(tokens) == pytest.approx(expected)
    assert MARK.z_score([7]) == MARK.z_score([]) == 0.0


async def test_the_share_of_green_is_gamma() -> None:
    for gamma in (0.1, 0.5, 0.9):
        mark = Watermark("k", gamma)
        share = sum(mark.is_green(i // 100, i % 100) for i in range(10_000)) / 10_000
        assert share == pytest.approx(gamma, abs=0.02)
    for gamma in (0.0, 1.0, -1.0):
        with pytest.raises(InvalidArgument, match="between 0 and 1"):
            Watermark("k", gamma)

"""What the engine computes on a device that is not the host: nothing is mixed with memory of the
host, nothing is read by numpy, and the results are those of the CPU.

The device is ``other_device``, so that this runs without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from attention_cases import EVERYTHING, make_case
from engine_driver import Driver, Row
from other_device import OtherDeviceTensor, other_device

from quire.core.batch import no_i32
from quire.core.decoding import Processor, SamplerSpec, StopSpec
from quire.engine.attention.backend import AttentionAttributes
from quire.engine.cuda.kv_pool import CudaKVPool
from quire.engine.kv_cache.pool import BlockShape
from quire.engine.kv_cache.torch_pool import TorchKVPool
from quire.engine.layers.key_turn import KeyTurn
from quire.engine.layers.rope_config import RopeConfig
from quire.engine.sampling.plan import SamplingPlan
from quire.engine.sampling.table import SamplingRow

CPU = torch.device("cpu")
VOCAB = 40

MakeDriver = Callable[..., Driver]


@pytest.fixture(autouse=True)
def device() -> Iterator[torch.device]:
    with other_device() as device, torch.inference_mode():
        yield device


def test_the_device_refuses_what_a_device_refuses(device: torch.device) -> None:
    there, here = torch.ones(3, device=device), torch.ones(3)
    assert isinstance(there, OtherDeviceTensor)
    for mixed in (
        lambda: there + here,
        lambda: torch.cat((there, here)),
        lambda: there.index_select(0, torch.tensor([0])),
        lambda: there.numpy(),
    ):
        with pytest.raises(RuntimeError):
            mixed()
    there.copy_(here * 2)
    assert (there.sum().item(), there[torch.tensor([0])].tolist()) == (6.0, [2.0])
    assert there.to("cpu").numpy().tolist() == [2.0] * 3


@pytest.mark.parametrize("window", [None, 7])
def test_attention(window: int | None, device: torch.device) -> None:
    sinks = torch.linspace(-1, 2, 4)
    there, here = (make_case(EVERYTHING, page_size=4, device=str(one)) for one in (device, CPU))
    for changes in ({}, {"softcap": 5.0}, {"sinks_N": sinks}):
        expected = here.expected(AttentionAttributes(0.25, window, **changes))
        if "sinks_N" in changes:
            changes = {"sinks_N": sinks.to(device)}
        actual = there.expected(AttentionAttributes(0.25, window, **changes))
        torch.testing.assert_close(actual.cpu(), expected)


def pool(kind: type[TorchKVPool], device: torch.device) -> TorchKVPool:
    turn = KeyTurn((RopeConfig(100.0),), (0, 0), 4)
    made = kind(
        BlockShape(2, 1, 4, 4, torch.float32),
        num_blocks=4,
        num_host_blocks=2,
        num_scratch=3,
        num_axes=1,
        device=device,
        turn=turn,
    )
    slots = np.arange(8)
    random = np.random.default_rng(0)
    tokens = (
        random.normal(size=made.form.bytes_per_layer * 2 * 8 // 4).astype(np.float32).view(np.uint8)
    )
    made.write_tokens(slots, range(2), tokens)
    made.place(slots, slots[None].astype(np.int32))
    return made


@pytest.mark.parametrize("kind", [TorchKVPool, CudaKVPool])
def test_the_cache(kind: type[TorchKVPool], device: torch.device) -> None:
    there, here = pool(kind, device), pool(TorchKVPool, CPU)
    for one in (there, here):
        one.copy_slots(np.array([1, 2], np.int32), np.array([9, 10], np.int32))
        one.reposition(np.array([9, 0], np.int32), np.array([30, 5], np.int32))
        one.swap_out(np.array([0, 2], np.int32), np.array([1, 0], np.int32))
        one.swap_in(np.array([1, 0], np.int32), np.array([3, 1], np.int32))
    for mine, theirs in zip(there.layers, here.layers, strict=True):
        assert torch.equal(mine.keys_SKD[:16].cpu(), theirs.keys_SKD[:16])
        assert torch.equal(mine.values_SKD[:16].cpu(), theirs.values_SKD[:16])
    assert np.array_equal(there.positions_AS[:, :16], here.positions_AS[:, :16])
    if isinstance(there, CudaKVPool):
        assert there.slot_positions_S[:16].tolist() == here.positions_AS[0, :16].tolist()
    read = [np.zeros(one.form.bytes_per_layer * 2 * 3, np.uint8) for one in (there, here)]
    for one, tokens in zip((there, here), read, strict=True):
        one.read_tokens(np.array([3, 9, 12]), range(2), tokens)
    assert np.array_equal(*read)


SAMPLERS = (
    SamplerSpec(),
    SamplerSpec(processors=(Processor("temperature", {"temperature": 0.8}),), greedy=False, seed=3),
    SamplerSpec(processors=(Processor("top_k", {"k": 5}),), greedy=False, seed=1),
    SamplerSpec(processors=(Processor("top_p", {"p": 0.7}),), greedy=False, seed=2),
)


def test_sampling(device: torch.device) -> None:
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(4, VOCAB)).astype(np.float32))
    positions = torch.arange(4)
    rows = [SamplingRow(sampler, no_i32(), no_i32()) for sampler in SAMPLERS]
    chosen = [
        SamplingPlan(rows, VOCAB, one).choose(logits.to(one), positions.to(one))
        for one in (device, CPU)
    ]
    assert [tokens.tolist() for tokens, _ in chosen] == [chosen[1][0].tolist()] * 2
    assert all(all(good.tolist()) for _, good in chosen)


def test_an_engine(make_driver: MakeDriver, device: torch.device) -> None:
    """A prompt in two rows, and three tokens after each of two prompts."""
    prompts, found = ([5, 9, 11, 40], [60, 61]), []
    for place in (str(device), "cpu"):
        driver = make_driver("llama", backend="torch", device=place)
        logprobs = driver.logprobs([Row(list(one)) for one in prompts])
        started = [
            driver.open(
                number, list(one), [2 * number, 2 * number + 1], stop=StopSpec(max_tokens=3)
            )
            for number, one in enumerate(prompts)
        ]
        outputs = driver.decode(started, num_steps=2)
        found.append((logprobs, [outputs[number].tokens for number in range(2)]))
    assert np.abs(found[0][0] - found[1][0]).max() < 1e-5
    assert found[0][1] == found[1][1]

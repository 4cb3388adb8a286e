"""Encoders of a node: batches in turn, bounds, losses, and a real model in a real process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from transformers import BertConfig, BertModel

from quire.core.config import EncoderConfig
from quire.core.encoding import EncodeBatch, EncodeResult
from quire.core.errors import (
    EngineLost,
    InvalidArgument,
    ModelNotFound,
    NeverWithinQuota,
    QuotaExceeded,
    UnsupportedModel,
)
from quire.core.event_loops import new_event_loop
from quire.core.ids import ModelId, TenantId
from quire.engine.encoders.text import EncodedText, EncoderTexts
from quire.node.encoders.fleet import EncoderFleet
from quire.node.encoders.queue import EncodeQueue, Job, batch_of
from quire.node.encoders.service import EncoderService
from quire.node.encoders.transport import EncoderTransports, in_process_encoder
from quire.node.health import EngineReadiness
from quire.node.supervisor import RestartLimits
from quire.node.transports import ZeroMQTransport
from quire.programs.runtime.clock import SystemClock
from quire.testing import FakeEncoder

A, B = TenantId("a"), TenantId("b")
QUICK = RestartLimits(max_losses=3, first_pause_s=0.001, max_pause_s=0.001)


def text(*tokens: int) -> EncodedText:
    return EncodedText(tokens, (0,) * len(tokens))


def job(tenant: TenantId, *lengths: int) -> Job:
    texts = [text(*[7] * length) for length in lengths]
    return Job(tenant, texts, np.empty((len(texts), 1), np.float32), len(texts))


# -- the queue -------------------------------------------------------------------------------------


def test_tenants_take_turns() -> None:
    queue = EncodeQueue(max_pending=100, max_batch_tokens=4)
    flood, single = job(A, *[1] * 8), job(B, 1)
    queue.add(flood)
    queue.add(single)
    first = queue.next_items()
    assert [(item.job is single, item.index) for item in first] == [
        (False, 0),
        (True, 0),
        (False, 1),
        (False, 2),
    ]
    assert [item.index for item in queue.next_items()] == [3, 4, 5, 6]
    assert [item.index for item in queue.next_items()] == [7]
    assert queue.next_items() == []


def test_a_batch_has_at_least_one_sequence_and_no_more_tokens_than_it_may() -> None:
    queue = EncodeQueue(max_pending=100, max_batch_tokens=4)
    queue.add(job(A, 9, 3, 2))
    sizes = [[len(item.text.tokens) for item in queue.next_items()] for _ in range(4)]
    assert sizes == [[9], [3], [2], []]


def test_what_nobody_waits_for_is_passed_over_and_not_counted() -> None:
    queue = EncodeQueue(max_pending=3, max_batch_tokens=100)
    gone, stays = job(A, 1, 1), job(A, 1)
    queue.add(gone)
    queue.add(stays)
    with pytest.raises(QuotaExceeded, match="3 sequences of this tenant are waiting"):
        queue.add(job(A, 1))
    queue.end(gone)
    queue.end(gone)
    assert queue.num_pending == {A: 1}
    assert [item.job for item in queue.next_items()] == [stays]


def test_a_job_that_is_too_large_by_itself_is_no_matter_of_time() -> None:
    queue = EncodeQueue(max_pending=3, max_batch_tokens=100)
    with pytest.raises(NeverWithinQuota, match=r"4 more are asked for, 3 may: send fewer$"):
        queue.add(job(A, 1, 1, 1, 1))


def test_a_tenant_that_floods_keeps_no_other_out() -> None:
    queue = EncodeQueue(max_pending=3, max_batch_tokens=2)
    flood, single = job(A, 1, 1, 1), job(B, 1)
    queue.add(flood)
    for _ in range(2):
        with pytest.raises(QuotaExceeded, match="3 sequences of this tenant are waiting"):
            queue.add(job(A, 1))
        queue.add(single)
        assert single in [item.job for item in queue.next_items()]
        queue.end(single)
        single = job(B, 1)
    queue.end(flood)
    assert not queue.num_pending
    queue.add(job(A, 1, 1, 1))


def test_whose_sequence_did_not_fit_has_the_next_turn() -> None:
    """Else a tenant behind others who always fill the batch would wait for ever."""
    queue = EncodeQueue(max_pending=100, max_batch_tokens=4)
    tenants = [TenantId(name) for name in "abc"]
    for tenant in tenants:
        queue.add(job(tenant, *[2] * 4))
    served = [[item.job.tenant for item in queue.next_items()] for _ in range(3)]
    assert served == [["a", "b"], ["c", "a"], ["b", "c"]]


def test_what_clients_leave_is_not_gathered_while_an_encoder_is_lost() -> None:
    queue = EncodeQueue(max_pending=4, max_batch_tokens=100)
    stays = job(A, 1)
    queue.add(stays)
    for _ in range(10):
        left = job(A, 1, 1, 1)
        queue.add(left)
        queue.end(left)
    assert {tenant: len(line) for tenant, line in queue._waiting.items()} == {A: 1}
    queue.end(stays)
    assert not queue._waiting


def test_a_lost_batch_comes_first_again() -> None:
    queue = EncodeQueue(max_pending=100, max_batch_tokens=2)
    queue.add(job(A, 1, 1, 1))
    lost = queue.next_items()
    queue.again(lost)
    assert queue.next_items() == lost


def test_a_batch_is_flat() -> None:
    queue = EncodeQueue(max_pending=100, max_batch_tokens=100)
    texts = [EncodedText((1, 2), (0, 1)), EncodedText((3,), (0,))]
    queue.add(Job(A, texts, np.empty((2, 1), np.float32), 2))
    batch = batch_of(5, queue.next_items())
    assert (batch.number, batch.tokens.tolist(), batch.types.tolist(), batch.lengths.tolist()) == (
        5,
        [1, 2, 3],
        [0, 1, 0],
        [2, 1],
    )


# -- the service -----------------------------------------------------------------------------------


class Gated(FakeEncoder):
    """Waits before a batch while its gate is closed; fails as often as it is told to."""

    def __init__(self, num_failures: int = 0) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()
        self.num_failures = num_failures
        self.batches: list[int] = []

    def encode(self, batch: EncodeBatch) -> EncodeResult:
        self.arrived.set()
        self.gate.wait()
        self.batches.append(len(batch.lengths))
        if self.num_failures:
            self.num_failures -= 1
            raise RuntimeError("as told")
        return super().encode(batch)


def fake_texts(source: str) -> EncoderTexts:
    return EncoderTexts(tokenizers.Tokenizer(tokenizers.models.WordLevel()), 64, "")


async def started(
    core: FakeEncoder, limits: RestartLimits = QUICK, **fields: int
) -> EncoderService:
    service = EncoderService(
        EncoderConfig(source="fake", name=ModelId("fake"), **fields),
        EncoderTransports(
            lambda config, progress: in_process_encoder(config.name, lambda: core), fake_texts
        ),
        clock=SystemClock(),
        on_change=lambda: None,
        on_progress=lambda stage, fraction: None,
        limits=limits,
    )
    await service.start()
    await service.wait_ready()
    return service


async def test_rows_come_back_to_those_who_asked() -> None:
    service = await started(FakeEncoder(), max_batch_tokens=3)
    asked = [[text(number), text(number, number)] for number in range(20)]
    answers = await asyncio.gather(*(service.encode(A, texts) for texts in asked))
    for number, rows in enumerate(answers):
        assert rows[:, number % 8].tolist() == [1, 2]
        assert rows.sum() == 3
    assert (await service.encode(A, [])).shape == (0, 8)
    await service.stop()


async def test_sequences_of_many_requests_share_a_batch() -> None:
    core = Gated()
    service = await started(core)
    core.gate.clear()
    asked = [asyncio.create_task(service.encode(A, [text(number)])) for number in range(12)]
    await asyncio.to_thread(core.arrived.wait)
    core.gate.set()
    await asyncio.gather(*asked)
    assert sum(core.batches) == 12
    assert len(core.batches) <= 4
    await service.stop()


async def test_what_is_cancelled_is_not_run() -> None:
    core = Gated()
    service = await started(core, max_batch_tokens=1, max_pending=10)
    core.gate.clear()
    asked = asyncio.create_task(service.encode(A, [text(1)] * 10))
    await asyncio.to_thread(core.arrived.wait)
    with pytest.raises(QuotaExceeded):
        await service.encode(A, [text(2)])
    asked.cancel()
    await asyncio.wait([asked])
    waiting = asyncio.create_task(service.encode(B, [text(2)]))
    core.gate.set()
    assert (await waiting).sum() == 1
    assert len(core.batches) == 3, "the two that were under way, and the other tenant's"
    await service.stop()


async def test_a_lost_encoder_is_started_again_and_its_work_done_again() -> None:
    core = Gated(num_failures=1)
    service = await started(core)
    assert (await service.encode(A, [text(3)])).sum() == 1
    assert service.health.restarts == 1
    assert service.health.state is EngineReadiness.READY
    await service.stop()


async def test_a_request_that_loses_two_encoders_is_given_up() -> None:
    service = await started(Gated(num_failures=2))
    with pytest.raises(EngineLost, match="lost twice"):
        await service.encode(A, [text(3)])
    assert (await service.encode(A, [text(3)])).sum() == 1, "and others go on"
    await service.stop()


async def test_a_crash_loop_is_given_up_and_everyone_told() -> None:
    service = await started(Gated(num_failures=100), max_batch_tokens=1)
    answers = await asyncio.gather(
        *(service.encode(A, [text(3)]) for _ in range(6)), return_exceptions=True
    )
    assert all(isinstance(answer, EngineLost) for answer in answers)
    assert service.health.state is EngineReadiness.FAILED
    with pytest.raises(EngineLost, match="cannot be served"):
        await service.encode(A, [text(1)])
    await service.stop()


@pytest.mark.parametrize(
    "bad", [text(), text(*[1] * 65), text(1 << 16), text(-1), EncodedText((1,), (2,))]
)
async def test_a_bad_sequence_does_not_reach_the_others_batch(bad: EncodedText) -> None:
    core = Gated()
    service = await started(core)
    with pytest.raises(InvalidArgument):
        await service.encode(A, [text(1), bad])
    assert core.batches == []
    await service.stop()


async def test_stopping_tells_those_who_wait() -> None:
    core = Gated()
    service = await started(core)
    core.gate.clear()
    asked = asyncio.create_task(service.encode(A, [text(1)]))
    await asyncio.to_thread(core.arrived.wait)
    stopping = asyncio.create_task(service.stop())
    with pytest.raises(EngineLost, match="stopped"):
        await asked
    core.gate.set()
    await stopping


# -- a real one ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    BertModel(config).save_pretrained(directory)
    vocab = {"[UNK]": 0, "a": 1, "b": 2}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def fleet_of(on_change: Callable[[], None] = lambda: None, **sources: Path) -> EncoderFleet:
    configs = [
        EncoderConfig(source=str(source), name=ModelId(name), num_threads=1)
        for name, source in sources.items()
    ]
    return EncoderFleet(
        configs,
        EncoderTransports(),
        clock=SystemClock(),
        on_change=on_change,
        on_progress=lambda stage, fraction: None,
    )


def test_an_encoder_process_encodes_and_survives_being_killed(encoder_directory: Path) -> None:
    """On the loop that a server's edge runs on, which need not be asyncio's own."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_encodes_and_survives(encoder_directory))


async def _encodes_and_survives(encoder_directory: Path) -> None:
    changed = asyncio.Event()
    fleet = fleet_of(changed.set, tiny=encoder_directory)
    await fleet.start()
    await fleet.wait_ready()
    changed.clear()
    service = fleet.find(None, "embedding")
    assert fleet.find("tiny", "embedding") is service
    (sequence,) = service.texts.encode(["a"])
    assert sequence == EncodedText((1,), (0,))
    before = await service.encode(A, [sequence, text(1, 2, 3)])
    model = BertModel.from_pretrained(encoder_directory).eval()
    with torch.no_grad():
        hidden = model(input_ids=torch.tensor([[1, 2, 3]])).last_hidden_state
    np.testing.assert_allclose(before[1], hidden[0].mean(0).numpy(), atol=1e-5)
    process = service._supervisor.transport
    assert isinstance(process, ZeroMQTransport)
    os.kill(process.pid, signal.SIGKILL)
    while not service.health.restarts:
        changed.clear()
        await changed.wait()
    after = await service.encode(A, [sequence, text(1, 2, 3)])
    np.testing.assert_array_equal(after, before)
    with pytest.raises(ModelNotFound, match="--encoder"):
        fleet.find("other", "embedding")
    with pytest.raises(ModelNotFound, match="cross_encoder"):
        fleet.find(None, "cross_encoder")
    with pytest.raises(InvalidArgument, match="kind"):
        fleet.find("tiny", "cross_encoder")
    await fleet.stop()


async def test_what_is_no_encoder_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    fleet = fleet_of(wrong=tmp_path)
    await fleet.start()
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM"):
        await fleet.wait_ready()
    assert fleet.all()[0].health.state is EngineReadiness.FAILED
    await fleet.stop()

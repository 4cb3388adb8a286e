"""Encoders of a node: requests, losses, instances, and a real model in real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tokenizers
import torch
from fake_node import fake_model_files, fake_transport
from transformers import BertConfig, BertModel

from quire.core.actions import Deliver
from quire.core.batch import F32
from quire.core.calls import AskEncoder
from quire.core.config import EncoderConfig, EngineConfig, NodeConfig, TenantConfig
from quire.core.encoding import Encode, EncodeBatch, Encoded, EncodeResult
from quire.core.errors import (
    EngineFault,
    EngineLost,
    InvalidArgument,
    ModelNotFound,
    ProgramCancelled,
    QuotaExceeded,
    UnsupportedModel,
)
from quire.core.event_loops import new_event_loop
from quire.core.events import Called
from quire.core.ids import EngineId, ModelId, ProgramId, TenantId
from quire.core.traits import ENCODER_TRAITS, NODE_TRAITS
from quire.engine.encoders.text import EncodedText, EncoderTexts
from quire.node import Node
from quire.node.control.control_thread import ControlThread
from quire.node.control.recorder import LogEntry, read_log
from quire.node.control.replaying import replay
from quire.node.encoders import asking as asking_module
from quire.node.encoders.aside import MANY_TOKENS
from quire.node.encoders.asking import BatchCount, EncoderRequests, OnBehalf
from quire.node.encoders.shared import shared_processes
from quire.node.encoders.transport import EncoderTransports, in_process_encoder
from quire.node.engines.engines import engine_id
from quire.node.supervision.health import EngineHealth, EngineReadiness
from quire.node.supervision.supervisor import RestartLimits
from quire.node.transports import ZeroMQTransport
from quire.testing import FakeEncoder

FAKE = ModelId("fake")
A, B = TenantId("a"), TenantId("b")
TENANTS = (TenantConfig(A), TenantConfig(B))
QUICK = RestartLimits(max_losses=3, first_pause_s=0.001, max_pause_s=0.001)


def text(*tokens: int) -> EncodedText:
    return EncodedText(tokens, (0,) * len(tokens))


# -- the service -----------------------------------------------------------------------------------


class HandControl:
    """The part of the control thread that ``EncoderRequests`` needs; the test sends its answers."""

    failure = None

    def __init__(self) -> None:
        self.asked: list[Called] = []

    def answer_node(self, loop: object, answered: Any, failed: Any) -> None:
        self.answered = answered

    def post_gathered(self, make: Callable[[float], Called]) -> None:
        self.asked.append(make(0.0))


async def test_the_batches_of_a_request_are_counted_for_whoever_asks() -> None:
    """A batch that returns two pieces of the rows counts once."""
    control, counted = HandControl(), BatchCount()
    requests = EncoderRequests(cast("ControlThread", control))
    requests.start()
    whose = OnBehalf(ProgramId(1), batches=counted)
    asking = asyncio.ensure_future(requests.ask(FAKE, 2, [text(n) for n in range(3)], whose))
    await asyncio.sleep(0)
    call = control.asked[0].call
    assert isinstance(call, AskEncoder)
    for first, batch, is_short in ((0, 4, True), (2, 4, True), (1, 5, False)):
        rows = np.full((1, 2), first, np.float32)
        reply = Encoded(first=first, rows=rows, batch=batch, is_short=is_short)
        command, last = call.command.id, batch == 5
        control.answered(Deliver(program=ProgramId(1), command=command, reply=reply, last=last))
    assert (await asking)[:, 0].tolist() == [0, 1, 2]
    assert counted == BatchCount(num_batches=2, num_short_batches=1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, 2.0], [np.nan, 0.0]], "gave numbers that are not finite for text 1: see whether"),
        ([[np.inf, 2.0], [0.0, 0.0]], "not finite for text 0"),
        ([[1.0], [2.0]], r"gave rows of \(1,\) numbers in place of \(2,\): start it again"),
    ],
)
async def test_numbers_that_nobody_can_use_are_refused(rows: Any, message: str) -> None:
    control = HandControl()
    requests = EncoderRequests(cast("ControlThread", control))
    requests.start()
    whose = OnBehalf(ProgramId(1))
    asking = asyncio.ensure_future(requests.ask(FAKE, 2, [text(1), text(2)], whose))
    await asyncio.sleep(0)
    call = control.asked[0].call
    assert isinstance(call, AskEncoder)
    reply = Encoded(first=0, rows=np.asarray(rows, np.float32), batch=1, is_short=False)
    answer = Deliver(program=ProgramId(1), command=call.command.id, reply=reply, last=True)
    control.answered(answer)
    with pytest.raises(EngineFault, match=message):
        await asking


async def test_a_large_request_is_made_beside_the_loop_and_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of 2048 texts of 512 tokens would hold the loop for a tenth of a second."""
    control, made_in = HandControl(), list[int]()
    make = asking_module._command

    def noted(*args: Any) -> Encode:
        made_in.append(threading.get_ident())
        return make(*args)

    monkeypatch.setattr(asking_module, "_command", noted)
    requests = EncoderRequests(cast("ControlThread", control))
    requests.start()
    large = [text(*[1] * MANY_TOKENS)]
    asking = asyncio.ensure_future(requests.ask(FAKE, 2, large, OnBehalf(ProgramId(1))))
    idle = asyncio.ensure_future(requests.wait_idle())
    async with asyncio.timeout(60):
        while not control.asked:  # noqa: ASYNC110 - a thread makes it
            await asyncio.sleep(0.001)
    assert made_in != [threading.get_ident()]
    assert not idle.done()
    call = control.asked[0].call
    assert isinstance(call, AskEncoder)
    assert call.command.lengths.tolist() == [MANY_TOKENS]
    reply = Encoded(first=0, rows=np.ones((1, 2), np.float32))
    control.answered(Deliver(program=ProgramId(1), command=call.command.id, reply=reply))
    assert (await asking).tolist() == [[1, 1]]
    await idle


async def test_numbers_that_a_program_makes_up_disturb_no_answer() -> None:
    """A guest names its commands itself, also like those that the node asks for it."""
    control = HandControl()
    requests = EncoderRequests(cast("ControlThread", control))
    requests.start()
    asking = asyncio.ensure_future(requests.ask(FAKE, 2, [text(1)], OnBehalf(ProgramId(1))))
    await asyncio.sleep(0)
    call = control.asked[0].call
    assert isinstance(call, AskEncoder)
    control.answered(Deliver(program=ProgramId(1), command=call.command.id))
    assert not asking.done()
    reply = Encoded(first=0, rows=np.ones((1, 2), np.float32))
    control.answered(Deliver(program=ProgramId(1), command=call.command.id, reply=reply))
    assert (await asking).tolist() == [[1, 1]]


class Gated(FakeEncoder):
    """Waits before a batch while its gate is closed; fails as often as it is told to."""

    def __init__(self, num_failures: int = 0, **limits: int) -> None:
        super().__init__(**limits)  # type: ignore[arg-type]
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


@asynccontextmanager
async def serving(core: FakeEncoder, *, instances: int = 1) -> AsyncIterator[Node]:
    """A node with ``core`` as each of its encoder's instances."""
    config = NodeConfig(
        engines=(EngineConfig(source="fake", name=ModelId("fake-model")),),
        tenants=TENANTS,
        encoders=(EncoderConfig(source="fake", name=FAKE, instances=instances),),
    )
    transports = EncoderTransports(
        lambda config, progress: in_process_encoder(config.name, lambda: core), fake_texts
    )
    node = Node(
        config,
        transport_factory=fake_transport,
        model_files=fake_model_files,
        encoder_transports=transports,
        restart_limits=QUICK,
        debug=True,
    )
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def ask(node: Node, texts: list[EncodedText], tenant: TenantId = A) -> asyncio.Task[F32]:
    """As a session of one call."""
    call = node.session(tenant).encode(node.encoder(None, "embedding"), texts)
    return asyncio.create_task(call.result())


def health_of(node: Node, index: int = 0) -> EngineHealth:
    return node.health().engines[engine_id(FAKE, index)]


async def test_rows_come_back_to_those_who_asked() -> None:
    async with serving(FakeEncoder(max_batch_tokens=3)) as node:
        asked = [[text(number), text(number, number)] for number in range(20)]
        answers = await asyncio.gather(*(ask(node, texts) for texts in asked))
        for number, rows in enumerate(answers):
            assert rows[:, number % 8].tolist() == [1, 2]
            assert rows.sum() == 3
        assert (await ask(node, [])).shape == (0, 8)


async def test_sequences_of_many_requests_share_a_batch() -> None:
    core = Gated()
    async with serving(core) as node:
        core.gate.clear()
        asked = [ask(node, [text(number)]) for number in range(12)]
        await asyncio.to_thread(core.arrived.wait)
        core.gate.set()
        await asyncio.gather(*asked)
        assert sum(core.batches) == 12
        assert len(core.batches) <= 4


async def test_what_is_cancelled_is_not_run() -> None:
    core = Gated(max_batch_tokens=1, max_pending=10)
    async with serving(core) as node:
        core.gate.clear()
        asked = ask(node, [text(1)] * 10)
        await asyncio.to_thread(core.arrived.wait)
        with pytest.raises(QuotaExceeded):
            await ask(node, [text(2)])
        asked.cancel()
        await asyncio.wait([asked])
        waiting = ask(node, [text(2)], B)
        core.gate.set()
        assert (await waiting).sum() == 1
        assert len(core.batches) == 3, "the two that were under way, and the other tenant's"


async def test_a_lost_encoder_is_started_again_and_its_work_done_again() -> None:
    async with serving(Gated(num_failures=1)) as node:
        assert (await ask(node, [text(3)])).sum() == 1
        assert health_of(node).restarts == 1
        assert health_of(node).state is EngineReadiness.READY


async def test_a_request_that_loses_two_encoders_is_given_up() -> None:
    async with serving(Gated(num_failures=2)) as node:
        with pytest.raises(EngineLost, match="lost twice"):
            await ask(node, [text(3)])
        assert (await ask(node, [text(3)])).sum() == 1, "and others go on"


async def test_a_crash_loop_is_given_up_and_everyone_told() -> None:
    async with serving(Gated(num_failures=100, max_batch_tokens=1)) as node:
        answers = await asyncio.gather(
            *(ask(node, [text(3)]) for _ in range(6)), return_exceptions=True
        )
        assert all(isinstance(answer, EngineLost) for answer in answers)
        assert health_of(node).state is EngineReadiness.FAILED
        with pytest.raises(EngineLost, match="cannot be served"):
            await ask(node, [text(1)])


@pytest.mark.parametrize(
    "bad", [text(), text(*[1] * 65), text(1 << 16), text(-1), EncodedText((1,), (2,))]
)
async def test_a_bad_sequence_does_not_reach_the_others_batch(bad: EncodedText) -> None:
    core = Gated()
    async with serving(core) as node:
        with pytest.raises(InvalidArgument):
            await ask(node, [text(1), bad])
        assert core.batches == []


async def test_stopping_tells_those_who_wait() -> None:
    core = Gated()
    async with serving(core) as node:
        core.gate.clear()
        asked = ask(node, [text(1)])
        await asyncio.to_thread(core.arrived.wait)
        stopping = asyncio.create_task(node.stop())
        with pytest.raises(ProgramCancelled, match="the node is stopping"):
            await asked
        core.gate.set()
        await stopping


async def test_a_draining_node_waits_for_rows() -> None:
    core = Gated()
    async with serving(core) as node:
        core.gate.clear()
        asked = ask(node, [text(1)])
        await asyncio.to_thread(core.arrived.wait)
        stopping = asyncio.create_task(node.stop(60.0))
        await asyncio.sleep(0)
        core.gate.set()
        assert (await asked).sum() == 1
        await stopping


async def test_several_instances_are_each_kept_running_and_share_the_work() -> None:
    core = Gated(max_batch_tokens=1)
    async with serving(core, instances=3) as node:
        assert {engine_id(FAKE, index) for index in range(3)} <= node.health().engines.keys()
        await asyncio.gather(*(ask(node, [text(1)] * 6) for _ in range(5)))
        (encoder,) = node.statistics().controller.encoders
        assert [one.num_sequences > 0 for one in encoder.instances] == [True] * 3
        assert sum(one.num_sequences for one in encoder.instances) == 30


async def test_the_models_of_a_node_with_encoders_have_the_encoders_trait() -> None:
    async with serving(FakeEncoder()) as node:
        (model,) = node.models()
        assert model.traits >= ENCODER_TRAITS | NODE_TRAITS


async def test_a_session_is_charged_for_what_is_encoded_for_it() -> None:
    async with serving(FakeEncoder(token_s=0.5)) as node:
        session = node.session(A, "agent")
        await session.encode(node.encoder(None, "embedding"), [text(1, 2, 3)]).result()
        (record,) = node.processes()
        assert (record.row.client_id, record.row.num_encoded_tokens) == ("agent", 3)
        assert record.row.service_s == pytest.approx(1.5)
        assert record.row.state == "idle"


async def test_a_recorded_run_replays_equal(tmp_path: Path) -> None:
    log = tmp_path / "events.log"
    core = Gated(num_failures=1, max_batch_tokens=4)
    config = NodeConfig(
        engines=(EngineConfig(source="fake", name=ModelId("fake-model")),),
        tenants=TENANTS,
        encoders=(EncoderConfig(source="fake", name=FAKE, instances=2),),
        record_path=log,
    )
    transports = EncoderTransports(
        lambda config, progress: in_process_encoder(config.name, lambda: core), fake_texts
    )
    node = Node(
        config,
        transport_factory=fake_transport,
        model_files=fake_model_files,
        encoder_transports=transports,
        restart_limits=QUICK,
    )
    await node.start()
    await asyncio.gather(*(ask(node, [text(n, n), text(n)], t) for n in range(9) for t in (A, B)))
    await node.stop()
    report = replay(log)
    assert report.equal, report.divergence
    events = [one.event for one in read_log(log) if isinstance(one, LogEntry)]
    calls = [event.call for event in events if isinstance(event, Called)]
    assert sum(isinstance(call, AskEncoder) for call in calls) == 18


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


def node_of(**sources: Path) -> Node:
    """With encoders in processes of their own."""
    configs = tuple(
        EncoderConfig(source=str(source), name=ModelId(name), num_threads=1, instances=2)
        for name, source in sources.items()
    )
    engine = EngineConfig(source="fake", name=ModelId("fake-model"))
    return Node(
        NodeConfig(engines=(engine,), encoders=configs, tenants=TENANTS),
        transport_factory=fake_transport,
        model_files=fake_model_files,
    )


def test_encoder_processes_encode_and_survive_being_killed(encoder_directory: Path) -> None:
    """On the loop that a server's edge runs on, which need not be asyncio's own."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_encodes_and_survives(encoder_directory))


async def _encodes_and_survives(encoder_directory: Path) -> None:
    node = node_of(tiny=encoder_directory)
    await node.start()
    service = node.encoder(None, "embedding")
    assert node.encoder("tiny", "embedding") is service
    (sequence,) = service.texts.encode(["a"])
    assert sequence == EncodedText((1,), (0,))
    before = await ask(node, [sequence, text(1, 2, 3)])
    model = BertModel.from_pretrained(encoder_directory).eval()
    with torch.no_grad():
        hidden = model(input_ids=torch.tensor([[1, 2, 3]])).last_hidden_state
    np.testing.assert_allclose(before[1], hidden[0].mean(0).numpy(), atol=1e-5)
    process = service._processes._supervisors[0].transport
    assert isinstance(process, ZeroMQTransport)
    os.kill(process.pid, signal.SIGKILL)
    asked = [ask(node, [sequence, text(1, 2, 3)]) for _ in range(8)]
    for after in await asyncio.gather(*asked):
        np.testing.assert_allclose(after, before, atol=1e-5)  # padded as others in the batch
    tiny = [EngineId("tiny#0"), EngineId("tiny#1")]
    healthy = await node.wait_health(
        lambda health: health.ready and any(health.engines[one].restarts for one in tiny)
    )
    assert set(tiny) <= healthy.engines.keys()
    assert sum(record.row.num_encoded_tokens for record in node.processes()) == 0, "all have ended"
    with pytest.raises(ModelNotFound, match="--encoder"):
        node.encoder("other", "embedding")
    with pytest.raises(ModelNotFound, match="cross_encoder"):
        node.encoder(None, "cross_encoder")
    with pytest.raises(InvalidArgument, match="kind"):
        node.encoder("tiny", "cross_encoder")
    await node.stop()


async def test_late_interaction_reads_what_its_model_has_embedded(encoder_directory: Path) -> None:
    """Both are one process, and each tenant finds what was encoded for it."""
    source = str(encoder_directory)
    configs = (
        EncoderConfig(source, ModelId("tiny"), num_threads=1),
        EncoderConfig(source, ModelId("rank"), late_interaction=True, num_threads=1),
    )
    node = Node(
        NodeConfig(
            (EngineConfig("fake", ModelId("fake-model")),), encoders=configs, tenants=TENANTS
        ),
        transport_factory=fake_transport,
        model_files=fake_model_files,
    )
    await node.start()
    embedder, ranker = node.encoder(None, "embedding"), node.encoder(None, "cross_encoder")
    assert (embedder.name, ranker.name, ranker.info.dimensions) == ("tiny", "rank", 1)
    assert {one.name for one in node.encoders()} == {"tiny", "rank"}
    assert "rank#0" not in (await node.wait_health(lambda health: health.ready)).engines

    def num_reused() -> int:
        (encoder,) = node.statistics().controller.encoders
        (instance,) = encoder.instances
        assert instance.cache_bytes > 0
        return instance.num_reused_tokens

    texts = embedder.texts.encode(["a", "b"])
    pairs = ranker.texts.encode_pairs("c", ["a", "b"])
    await ask(node, texts)
    assert num_reused() == 0
    scores = await node.session(A).encode(ranker, pairs).result()
    assert scores.shape == (2, 1)
    assert num_reused() == 2, "the documents"
    others = await node.session(B).encode(ranker, pairs).result()
    assert num_reused() == 2
    np.testing.assert_allclose(others, scores, atol=1e-5)
    await node.stop()


def test_late_interaction_has_processes_of_its_own_where_it_is_told_otherwise() -> None:
    plain = EncoderConfig("x", ModelId("plain"))
    late = EncoderConfig("x", ModelId("late"), late_interaction=True)

    def served(*configs: EncoderConfig) -> list[tuple[str, list[str], bool]]:
        return [
            (str(one.config.name), list(one.names), one.config.also_scores)
            for one in shared_processes(configs)
        ]

    assert served(late, plain) == [("plain", ["plain", "late"], True)]
    assert served(late) == [("late", ["late"], False)]
    apart = [("plain", ["plain"], False), ("late", ["late"], False)]
    for other in (replace(late, source="y"), replace(late, instances=2)):
        assert served(plain, other) == apart


async def test_what_is_no_encoder_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    node = node_of(wrong=tmp_path)
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM"):
        await node.start()

"""Programs that embed and rank: native and sandboxed, from the same source."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import tokenizers
from fake_node import TENANT
from sandbox_node import needs_sandbox, program, sandbox_config, sandbox_node

from quire.core.calls import SPARE_PRIORITY, AskEncoder
from quire.core.config import EncoderConfig, NodeConfig
from quire.core.encoding import EncodeBatch, EncodeResult
from quire.core.errors import NeverWithinQuota, ProgramFailed, TraitMissing
from quire.core.events import Called
from quire.core.ids import ModelId
from quire.core.quotas import Quotas
from quire.engine.encoders.text import EncoderTexts
from quire.node import Node
from quire.node.control.recorder import LogEntry, read_log
from quire.node.encoders.programs import EncodedTokens
from quire.node.encoders.transport import EncoderTransports, in_process_encoder
from quire.programs.inferlet import Inferlet, load_inferlet
from quire.programs.library import find
from quire.programs.sandbox.program import GuestProgram
from quire.programs.services.encoding import MAX_CHARS
from quire.testing import FakeEncoder

pytestmark = [
    pytest.mark.e2e,
    needs_sandbox,
    pytest.mark.timeout(400),  # the first one builds the component
    pytest.mark.asyncio(loop_scope="module"),
]

BATCHED_TEXTS = {
    "native": ["c c b", "c b c", "b c c"], "sandboxed": ["c a a", "a a c", "a c a"]
}  # fmt: skip
WORDS = {"[UNK]": 0, "[SEP]": 1, "a": 2, "b": 3, "c": 4}


def words(source: str) -> EncoderTexts:
    """A token for each word; pairs with a mark between."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A", pair="$A [SEP] $B:1", special_tokens=[("[SEP]", 1)]
    )
    return EncoderTexts(tokenizer, 8, "")


class Gated(FakeEncoder):
    """Waits before a batch while its gate is closed."""

    def __init__(self) -> None:
        super().__init__(max_tokens=8, max_batch_tokens=8)
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()
        self.num_sequences = 0

    def encode(self, batch: EncodeBatch) -> EncodeResult:
        self.arrived.set()
        self.gate.wait()
        self.num_sequences += len(batch.lengths)
        return super().encode(batch)


def node_with(
    cache: Path, encoders: Mapping[str, FakeEncoder], record_path: Path | None = None
) -> Node:
    base = sandbox_config(cache)
    configs = tuple(EncoderConfig(source=name, name=ModelId(name)) for name in encoders)
    config = NodeConfig(
        engines=base.engines, sandbox=base.sandbox, encoders=configs, record_path=record_path
    )
    transports = EncoderTransports(
        lambda encoder, on_progress: in_process_encoder(
            encoder.name, lambda: encoders[encoder.name]
        ),
        words,
    )
    return sandbox_node(config, encoder_transports=transports)


@pytest.fixture(scope="module")
def embedder() -> Gated:
    return Gated()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(sandbox_cache: Path, embedder: Gated) -> AsyncIterator[Node]:
    ranker = FakeEncoder("cross_encoder", max_tokens=8)
    node = node_with(sandbox_cache, {"embedder": embedder, "ranker": ranker})
    await node.start()
    yield node
    await node.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain_node(sandbox_cache: Path) -> AsyncIterator[Node]:
    node = node_with(sandbox_cache, {})
    await node.start()
    yield node
    await node.stop()


@pytest.fixture(params=("native", "sandboxed"))
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def program_of(node: Node, form: str, folder: Path, body: str) -> Inferlet | GuestProgram:
    code = program(f'@inferlet("encoding")\nasync def main(api, *args):\n    {body}\n')
    if form == "sandboxed":
        return await node.inspect(code)
    path = folder / "program.py"
    path.write_bytes(code)
    return load_inferlet(path)


async def run(node: Node, form: str, folder: Path, body: str, **options: Any) -> Any:
    """What a program returns whose one statement is ``body``."""
    one = await program_of(node, form, folder, body)
    return await node.launch(one, tenant=TENANT, **options).result()


async def test_vectors_and_scores(node: Node, form: str, tmp_path: Path) -> None:
    assert await run(node, form, tmp_path, "return await api.embed(['a b b', 'c'])") == [
        [0, 0, 1, 2, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0, 0],
    ]
    half = "return await api.embed(['a b b'], dimensions=3, model='embedder')"
    assert await run(node, form, tmp_path, half) == [[0, 0, 1]]
    assert await run(node, form, tmp_path, "return await api.rerank('a', ['b', 'a', 'a b'])") == [
        0,
        1,
        0.5,
    ]


async def test_a_program_can_count_its_batches(node: Node, form: str, tmp_path: Path) -> None:
    """A batch has at most eight tokens; texts whose rows are kept are in none."""
    body = (
        f"from quire.programs.api.encode import EncoderBatches; texts = {BATCHED_TEXTS[form]};"
        " new, kept, ranked = EncoderBatches(), EncoderBatches(), EncoderBatches();"
        " await api.embed(texts, batches=new); await api.embed(texts, batches=kept);"
        " await api.rerank('c', texts[:1], batches=ranked);"
        " return [[one.num_batches, one.num_short_batches] for one in (new, kept, ranked)]"
    )
    assert await run(node, form, tmp_path, body) == [[2, 0], [0, 0], [1, 0]]


async def test_control_sees_thread_depth_and_priority_of_a_question(
    sandbox_cache: Path, form: str, tmp_path: Path
) -> None:
    log = tmp_path / "events.log"
    encoders = {"embedder": FakeEncoder(max_tokens=8), "ranker": FakeEncoder("cross_encoder")}
    node = node_with(sandbox_cache, encoders, log)
    await node.start()
    body = (
        "return [await api.embed(['a'], thread=3, depth=2, priority=-1, invocation=7),"
        " await api.rerank('a', ['b'], thread=4, depth=1, priority=5, remaining_us=9),"
        " await api.embed(['b'])]"
    )
    await run(node, form, tmp_path, body)
    with pytest.raises(ProgramFailed, match="depth is 'deep': give int"):
        await run(node, form, tmp_path, "return await api.embed(['a'], depth='deep')")
    await node.stop()
    events = [one.event for one in read_log(log) if isinstance(one, LogEntry)]
    calls = [event.call for event in events if isinstance(event, Called)]
    asked = [call for call in calls if isinstance(call, AskEncoder)]
    orders = [(call.thread, call.depth, call.priority) for call in asked]
    assert orders == [(3, 2, -1), (4, 1, 5), (0, 0, 0)]
    assert [(call.invocation, call.remaining_us) for call in asked] == [(7, 0), (0, 9), (0, 0)]


async def test_what_a_program_can_ask_for_is_listed(node: Node, form: str, tmp_path: Path) -> None:
    body = "return [vars_of(one) for one in await api.available_encoders()]"
    body = body.replace("vars_of(one)", "[one.name, one.kind, one.dimensions, one.max_tokens]")
    assert await run(node, form, tmp_path, body) == [
        ["embedder", "embedding", 8, 8],
        ["ranker", "cross_encoder", 1, 8],
    ]
    traits = await run(node, form, tmp_path, "return api.available_traits()")
    assert "Encode" in traits


async def test_a_long_text_is_refused_or_cut(node: Node, form: str, tmp_path: Path) -> None:
    with pytest.raises(
        ProgramFailed,
        match="sequence 1 has 9 tokens, but 'embedder' reads 8",
    ):
        await run(node, form, tmp_path, "return await api.embed(['a', 'a ' * 9])")
    cut = "return await api.embed(['a ' * 9], truncate=True)"
    assert await run(node, form, tmp_path, cut) == [[0, 0, 8, 0, 0, 0, 0, 0]]
    with pytest.raises(ProgramFailed, match="PromptTooLong: sequence 0 has 11 tokens"):
        await run(node, form, tmp_path, "return await api.rerank('a', ['b ' * 9])")
    cut = "return await api.rerank('a', ['b ' * 9], truncate=True)"
    assert await run(node, form, tmp_path, cut) == [0]
    long_query = "return await api.rerank('a ' * 9, ['b'], truncate=True)"
    with pytest.raises(ProgramFailed, match="shorten the query"):
        await run(node, form, tmp_path, long_query)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("embed('a')", "InvalidArgument", "a list of texts, not one text"),
        ("embed([])", "InvalidArgument", "0 texts; give 1 to 2048"),
        ("embed(['a'] * 2049)", "InvalidArgument", "2049 texts; give 1 to 2048"),
        ("embed(['a', ''])", "InvalidArgument", r"texts\[1\] is empty"),
        ("embed(['a', 1])", "InvalidArgument", r"Expected `str`, got `int` - at `\$.texts\[1\]`"),
        ("embed(['a'], dimensions=0)", "InvalidArgument", "dimensions is 0"),
        ("embed(['a'], dimensions=9)", "InvalidArgument", "embeddings of 'embedder' have 8"),
        ("embed(['a'], model='ranker')", "InvalidArgument", "needs one of kind embedding"),
        ("embed(['a'], model='none')", "ModelNotFound", "encoders: embedder, ranker"),
        (f"embed(['a' * {MAX_CHARS // 2}] * 3)", "InvalidArgument", "split the texts"),
        ("rerank('', ['a'])", "InvalidArgument", "the query is empty"),
        ("rerank('a', 'b')", "InvalidArgument", "a list of texts, not one text"),
        ("rerank('a', [])", "InvalidArgument", "0 documents; give 1 to 2048"),
        ("rerank('a', ['b'], model='embedder')", "InvalidArgument", "of kind cross_encoder"),
    ],
)
async def test_bad_input_is_told(
    node: Node,
    form: str,
    tmp_path: Path,
    call: str,
    error: str,
    message: str,
) -> None:
    with pytest.raises(ProgramFailed, match=f"raised {error}: .*{message}"):
        await run(node, form, tmp_path, f"return await api.{call}")


async def test_a_node_without_encoders_says_so(plain_node: Node, form: str, tmp_path: Path) -> None:
    assert "Encode" not in await run(plain_node, form, tmp_path, "return api.available_traits()")
    assert await run(plain_node, form, tmp_path, "return await api.available_encoders()") == []
    with pytest.raises(ProgramFailed, match=r"no model of kind embedding.*--encoder"):
        await run(plain_node, form, tmp_path, "return await api.embed(['a'])")
    code = '@inferlet("needy", traits={"Encode": 1})\nasync def main(api):\n    return 1\n'
    if form == "sandboxed":
        needy: Inferlet | GuestProgram = await plain_node.inspect(program(code))
    else:
        (tmp_path / "needy.py").write_bytes(program(code))
        needy = load_inferlet(tmp_path / "needy.py")
    with pytest.raises(TraitMissing, match="needs Encode, and this node has no encoder"):
        await plain_node.launch(needy, tenant=TENANT).result()


async def test_encoded_tokens_are_bounded(node: Node, form: str, tmp_path: Path) -> None:
    body = "return [await api.embed(['a b c']), await api.embed(['a b c'])] and 'both'"
    assert await run(node, form, tmp_path, body, quotas=Quotas(max_encoded_tokens=6)) == "both"
    with pytest.raises(ProgramFailed, match=r"3 tokens.*3 more are asked for; at most 5 are"):
        await run(node, form, tmp_path, body, quotas=Quotas(max_encoded_tokens=5))


async def test_children_share_their_parents_bound(node: Node, form: str, tmp_path: Path) -> None:
    body = (
        "return await api.embed(['a b c']) and 'child' if args else "
        "[await (await api.launch('encoding', ['child'])).join() for _ in range(2)]"
    )
    one = await program_of(node, form, tmp_path, body)
    if isinstance(one, Inferlet):
        body = body.replace("'encoding'", "main")
        one = await program_of(node, form, tmp_path, body)
    quotas = Quotas(max_encoded_tokens=6)
    result = await node.launch(one, tenant=TENANT, quotas=quotas).result()
    assert result == ["child", "child"]
    quotas = Quotas(max_encoded_tokens=5)
    with pytest.raises(ProgramFailed, match=r"NeverWithinQuota: 3 tokens.*at most 5 are"):
        await node.launch(one, tenant=TENANT, quotas=quotas).result()


async def test_a_refused_question_counts_nothing() -> None:
    """Neither at the program nor at those above it."""
    parent = EncodedTokens(10)
    child = EncodedTokens(None, parent)
    child.take(6)
    with pytest.raises(NeverWithinQuota, match=r"6 tokens.*5 more are asked for; at most 10 are"):
        child.take(5)
    child.take(4)
    assert (child.num_tokens, parent.num_tokens) == (10, 10)


async def test_what_is_bounded_is_not_spent_in_spare_time() -> None:
    parent = EncodedTokens(10)
    child = EncodedTokens(None, parent)
    with pytest.raises(NeverWithinQuota, match="may not have any encoded in spare time"):
        child.take(1, in_spare_time=True)
    assert (child.num_tokens, parent.num_tokens) == (0, 0)
    free = EncodedTokens(None)
    free.take(1, in_spare_time=True)
    assert free.num_tokens == 1


async def test_a_bounded_program_has_nothing_embedded_in_spare_time(
    node: Node, form: str, tmp_path: Path
) -> None:
    body = f"return len(await api.embed(['a b c'], priority={SPARE_PRIORITY}))"
    assert await run(node, form, tmp_path, body) == 1
    with pytest.raises(ProgramFailed, match="may not have any encoded in spare time"):
        await run(node, form, tmp_path, body, quotas=Quotas(max_encoded_tokens=9))


async def test_what_is_cancelled_is_not_computed(
    node: Node, embedder: Gated, form: str, tmp_path: Path
) -> None:
    """The program gives up when it is told to, and its next question does not wait behind."""
    body = """asked = asyncio.ensure_future(api.embed(["a b c a b c"] * 1000))
    await api.receive()
    asked.cancel()
    await asyncio.wait([asked])
    await api.send("given up")
    return asked.cancelled()"""
    embedder.gate.clear()
    embedder.arrived.clear()
    before = embedder.num_sequences
    handle = node.launch(await program_of(node, form, tmp_path, body), tenant=TENANT)
    attachment = handle.attach()
    await asyncio.to_thread(embedder.arrived.wait)
    await handle.send("give up")
    assert (await anext(attachment)).text == "given up"
    await node._parts.encoders.wait_idle()
    embedder.gate.set()
    assert await handle.result() is True
    assert await run(node, form, tmp_path, "return len(await api.embed(['a']))") == 1
    assert embedder.num_sequences - before < 10, "what was under way, and one more"


async def test_retrieval_of_the_library_runs_in_both_ways(node: Node, form: str) -> None:
    retrieval: Inferlet | GuestProgram = find("retrieval")
    if form == "sandboxed":
        assert isinstance(retrieval, Inferlet)
        assert retrieval.source is not None
        retrieval = await node.inspect(await asyncio.to_thread(Path(retrieval.source).read_bytes))
    args = ("b c", '["a a", "c", "a b c", "a"]', "2")
    result = await node.launch(retrieval, args, tenant=TENANT).result()
    assert result["read"] == [1, 2], "all of what `c` says is asked for; of `a b c` two thirds"

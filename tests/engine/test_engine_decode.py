"""Whole decodes: transformers' greedy tokens, steps per message, batches, epochs, failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_checkpoints import EOS, RECIPES, VOCAB_SIZE
from engine_driver import Driver, Output, Row, forward_rows, i32
from transformers import AutoModelForCausalLM, PreTrainedModel

import quire
from quire.core.batch import CloseSequences, ExtendSequence
from quire.core.batch_result import SequenceEnd
from quire.core.config import EngineConfig
from quire.core.decoding import GrammarSpec, Processor, SamplerSpec, StopSpec
from quire.core.errors import EngineFault
from quire.core.ids import ModelId, SequenceId
from quire.engine.engine import Engine
from quire.engine.tokenizer import load_tokenizer
from quire.engine.torch_runner import TorchRunner

MakeDriver = Callable[..., Driver]
Reference = Callable[[str], PreTrainedModel]

MINI = Path(quire.__file__).parent / "assets" / "quire-mini"


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, count).tolist()


def generate(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy tokens of transformers, end-of-sequence included."""
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([list(prompt)]), max_new_tokens=count, do_sample=False, pad_token_id=2
        )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def blocks_for(driver: Driver, number: int, num_tokens: int) -> list[int]:
    count = driver.num_pages(num_tokens)
    return list(range(number * count, (number + 1) * count))


@pytest.mark.parametrize("name", RECIPES)
def test_greedy_tokens_equal_generate(
    name: str, make_driver: MakeDriver, reference: Reference
) -> None:
    """A batch of prompts of different lengths, several steps per message."""
    driver = make_driver(name)
    prompts = [random_tokens(n, n) for n in (1, 7, 16)]
    stop = StopSpec(max_tokens=24, token_ids=(EOS,))
    started = [
        driver.open(i, prompt, blocks_for(driver, i, 40), stop=stop)
        for i, prompt in enumerate(prompts)
    ]
    outputs = driver.decode(started, num_steps=5)
    for i, prompt in enumerate(prompts):
        wanted = generate(reference(name), prompt, 24)
        assert outputs[i].tokens == wanted
        stopped = wanted[-1] == EOS
        assert outputs[i].end is (SequenceEnd.STOP_TOKEN if stopped else SequenceEnd.MAX_TOKENS)


PROMPTS = [
    "What is 417 + 58?",
    "Who are you?",
    "Compute 90210 - 4711.",
]


@pytest.mark.skipif(not (MINI / "model.safetensors").is_file(), reason="no shipped model here")
def test_the_shipped_model_says_what_transformers_says() -> None:
    tokenizer = load_tokenizer(str(MINI))
    engine = Engine(
        EngineConfig(source=str(MINI), name=ModelId("quire-mini"), dtype="float32", num_threads=1)
    )
    driver = Driver(engine)
    model = AutoModelForCausalLM.from_pretrained(MINI, dtype=torch.float32)
    template = "<|user|>{}<|end|><|assistant|>"
    prompts = [tokenizer.encode(template.format(text)) for text in PROMPTS]
    stop = StopSpec(max_tokens=40, token_ids=tokenizer.eos_token_ids)
    started = [
        driver.open(i, prompt, blocks_for(driver, i, 160), stop=stop)
        for i, prompt in enumerate(prompts)
    ]
    outputs = driver.decode(started, num_steps=7)
    for i, prompt in enumerate(prompts):
        assert outputs[i].tokens == generate(model, prompt, 40)


SAMPLER = SamplerSpec(
    processors=(
        Processor("repetition_penalty", {"penalty": 1.2}),
        Processor("frequency_penalty", {"penalty": 0.3}),
        Processor("temperature", {"temperature": 0.9}),
        Processor("top_k", {"k": 40}),
    ),
    greedy=False,
    seed=1234,
)


@pytest.mark.parametrize("sampler", [SamplerSpec(), SAMPLER], ids=["greedy", "drawn"])
def test_steps_per_message_change_nothing(sampler: SamplerSpec, make_driver: MakeDriver) -> None:
    outputs = []
    for num_steps in (1, 2, 3, 7, 32):
        driver = make_driver()
        started = [
            driver.open(
                i,
                random_tokens(4 + 5 * i, i),
                blocks_for(driver, i, 50),
                sampler=sampler,
                stop=StopSpec(max_tokens=11 + i),
                num_logprobs=2,
            )
            for i in range(3)
        ]
        outputs.append(driver.decode(started, num_steps=num_steps))
    for other in outputs[1:]:
        assert {i: o.tokens for i, o in other.items()} == {
            i: o.tokens for i, o in outputs[0].items()
        }
        for i, output in other.items():
            np.testing.assert_allclose(output.logprobs, outputs[0][i].logprobs, atol=1e-4)


def test_a_draw_does_not_depend_on_its_batch(make_driver: MakeDriver) -> None:
    """Eight seeds together, in another order, and alone."""
    specs = [SamplerSpec(SAMPLER.processors, greedy=False, seed=s) for s in range(8)]

    def run(order: Sequence[int]) -> dict[int, Output]:
        driver = make_driver()
        started = [
            driver.open(place, random_tokens(9), blocks_for(driver, place, 24), sampler=specs[seed])
            for place, seed in enumerate(order)
        ]
        outputs = driver.decode(started, num_steps=4)
        return {seed: outputs[place] for place, seed in enumerate(order)}

    together = run(range(8))
    assert len({tuple(output.tokens) for output in together.values()}) == 8
    backwards = run(range(7, -1, -1))
    for seed in range(8):
        assert backwards[seed].tokens == together[seed].tokens
        assert run([seed])[seed].tokens == together[seed].tokens


def test_a_row_that_is_taken_again_forgets_its_last_sampler(make_driver: MakeDriver) -> None:
    """The plan of the same rows is reused across messages, but not for other sequences."""
    drawn = SamplerSpec(SAMPLER.processors, greedy=False, seed=3)

    def run(samplers: Sequence[SamplerSpec]) -> list[list[int]]:
        driver, tokens = make_driver(), []
        for sampler in samplers:
            started = driver.open(0, random_tokens(9), blocks_for(driver, 0, 24), sampler=sampler)
            tokens.append(driver.decode([started], num_steps=4)[0].tokens)
        return tokens

    greedy, drawn_behind_it, greedy_again = run([SamplerSpec(), drawn, SamplerSpec()])
    assert [drawn_behind_it] == run([drawn])
    assert greedy == greedy_again != drawn_behind_it


def test_prompt_chunks_and_decodes_share_a_batch(
    make_driver: MakeDriver, reference: Reference
) -> None:
    """One sequence decodes while the prompt of another runs in chunks and joins."""
    driver = make_driver()
    first, second = random_tokens(10, 1), random_tokens(21, 2)
    outputs: dict[int, Output] = {}
    operations, row = driver.open(0, first, blocks_for(driver, 0, 48), stop=StopSpec(max_tokens=20))
    result = driver.good(operations=operations, forward=forward_rows([row], outputs=False))
    driver.collect(result, outputs)
    blocks = blocks_for(driver, 1, 48)
    for start, end in [(0, 8), (8, 16)]:
        span = range(start, end)
        chunk = Row(second[start:end], 1, span, driver.flat(blocks, span))
        result = driver.good(
            num_steps=2,
            operations=[driver.write_table(1, blocks, range(end))],
            forward=forward_rows([chunk], outputs=False),
            advance=driver.advance([0], 2),
        )
        driver.collect(result, outputs)
    operations, _ = driver.open(1, second, blocks, stop=StopSpec(max_tokens=12))
    span = range(16, 21)
    last = Row(second[16:], 1, span, driver.flat(blocks, span), sequence=1)
    result = driver.good(
        num_steps=4,
        operations=operations,
        forward=forward_rows([last], outputs=False),
        advance=driver.advance([0], 3),
    )
    assert result.sequences.sequences.tolist() == [1, 0]
    assert np.diff(result.sequences.token_starts).tolist() == [4, 3]
    assert result.num_tokens == 5 + 3 + 3
    driver.collect(result, outputs)
    result = driver.good(num_steps=32, advance=driver.advance([1, 0], 32))
    driver.collect(result, outputs)
    assert outputs[0].tokens == generate(reference("llama"), first, 20)
    assert outputs[1].tokens == generate(reference("llama"), second, 12)


def test_a_message_that_runs_ahead_finds_ended_rows_inert(make_driver: MakeDriver) -> None:
    driver = make_driver()
    free = driver.decode(
        [driver.open(0, random_tokens(6), blocks_for(driver, 0, 24), stop=StopSpec(max_tokens=9))]
    )[0].tokens
    stop = StopSpec(max_tokens=9, token_ids=(free[3],))
    rows = [
        driver.open(0, random_tokens(6), blocks_for(driver, 0, 24), stop=stop),
        driver.open(1, random_tokens(6), blocks_for(driver, 1, 24), stop=StopSpec(max_tokens=9)),
    ]
    driver.good(
        operations=[o for operations, _ in rows for o in operations],
        forward=forward_rows([row for _, row in rows], outputs=False),
    )
    results = [driver.good(num_steps=4, advance=driver.advance([0, 1], 4)) for _ in range(2)]
    cut = free.index(free[3]) + 1
    assert np.diff(results[0].sequences.token_starts).tolist() == [cut - 1, 4]
    assert results[0].sequences.ends.tolist() == [SequenceEnd.STOP_TOKEN, SequenceEnd.RUNNING]
    assert np.diff(results[1].sequences.token_starts).tolist() == [0, 4]
    assert results[1].sequences.ends.tolist() == [SequenceEnd.RUNNING, SequenceEnd.MAX_TOKENS]
    assert results[1].num_tokens == 4


def test_stale_epochs_are_inert_and_change_nothing(make_driver: MakeDriver) -> None:
    driver = make_driver()
    operations, row = driver.open(
        3, random_tokens(5), blocks_for(driver, 0, 24), epoch=7, stop=StopSpec(max_tokens=9)
    )
    outputs: dict[int, Output] = {}
    result = driver.good(operations=operations, forward=forward_rows([row], outputs=False))
    driver.collect(result, outputs)
    stale = driver.good(num_steps=3, advance=driver.advance([3], 3, epoch=6))
    assert stale.sequences.tokens.tolist() == []
    assert stale.sequences.epochs.tolist() == [6]
    assert stale.num_tokens == 0
    driver.collect(driver.good(num_steps=9, advance=driver.advance([3], 9, epoch=7)), outputs)
    alone = driver.decode(
        [driver.open(1, random_tokens(5), blocks_for(driver, 2, 24), stop=StopSpec(max_tokens=9))]
    )
    assert outputs[3].tokens == alone[1].tokens


def test_a_failing_row_leaves_the_others_alone(
    make_driver: MakeDriver, reference: Reference
) -> None:
    driver = make_driver()
    good = driver.open(0, random_tokens(6), blocks_for(driver, 0, 24), stop=StopSpec(max_tokens=5))
    nobody = SamplerSpec((Processor("bad_words", {"tokens": list(range(VOCAB_SIZE))}),))
    excluded = driver.open(1, random_tokens(6), blocks_for(driver, 1, 24), sampler=nobody)
    unknown = driver.open(
        2, random_tokens(6), blocks_for(driver, 2, 24), sampler=SamplerSpec((Processor("mystery"),))
    )
    grammar = driver.open(
        4,
        random_tokens(6),
        blocks_for(driver, 4, 24),
        grammar=GrammarSpec("regex", "(unclosed"),
    )
    started = [good, excluded, unknown, grammar]
    rows = [row for _, row in started]
    rows.insert(1, Row([5, VOCAB_SIZE], positions=[0, 1]))
    rows.insert(2, Row([5], table=99))
    result = driver.send(
        num_steps=5,
        operations=[operation for operations, _ in started for operation in operations],
        forward=forward_rows(rows, outputs=False),
    )
    ends = dict(zip(result.sequences.sequences.tolist(), result.sequences.ends, strict=True))
    assert ends == {
        0: SequenceEnd.MAX_TOKENS,
        1: SequenceEnd.FAILED,
        2: SequenceEnd.FAILED,
        4: SequenceEnd.FAILED,
    }
    assert result.sequences.tokens.tolist() == generate(reference("llama"), random_tokens(6), 5)
    failures = {(f.stage, f.index): f.error.code for f in result.failures}
    assert failures == {
        ("operations", 5): "invalid_argument",
        ("forward", 1): "invalid_argument",
        ("forward", 2): "unknown_handle",
        ("forward", 3): "invalid_argument",
        ("forward", 4): "invalid_argument",
        ("forward", 5): "invalid_grammar",
    }
    again = driver.send(num_steps=2, advance=driver.advance([1, 9], 2))
    assert again.sequences.tokens.tolist() == []
    assert [(f.stage, f.index) for f in again.failures] == [("advance", 1)]
    driver.good(operations=[CloseSequences(sequences=[SequenceId(s) for s in (0, 1, 2, 4)])])


@pytest.mark.parametrize(
    ("row", "part"),
    [
        (Row([-9]), "token ids"),
        (Row([5], positions=[600]), "positions"),
        (Row([5], positions=[-1]), "positions"),
        (Row([5], slots=[96 * 4]), "slots"),
        (Row([5], mask=np.ones((1, 3), bool)), "mask"),
        (Row([5] * 200), "at most 128"),
    ],
    ids=["token slot", "position", "negative", "slot", "mask", "too long"],
)
def test_the_error_of_a_row_is_reported(row: Row, part: str, make_driver: MakeDriver) -> None:
    driver = make_driver()
    result = driver.send(forward=forward_rows([Row([7, 8]), row], outputs=False))
    assert [(f.stage, f.index) for f in result.failures] == [("forward", 1)]
    assert part in result.failures[0].error.message
    assert result.num_tokens == 2


def test_room_can_be_extended_between_messages(
    make_driver: MakeDriver, reference: Reference
) -> None:
    driver = make_driver()
    prompt = random_tokens(6)
    operations, row = driver.open(
        0, prompt, blocks_for(driver, 0, 24), limit=8, stop=StopSpec(max_tokens=12)
    )
    outputs: dict[int, Output] = {}
    result = driver.good(
        num_steps=3, operations=operations, forward=forward_rows([row], outputs=False)
    )
    driver.collect(result, outputs)
    assert (len(outputs[0].tokens), outputs[0].end) == (3, SequenceEnd.RUNNING)
    extend = ExtendSequence(sequence=SequenceId(0), limit=24)
    result = driver.good(num_steps=9, operations=[extend], advance=driver.advance([0], 9))
    driver.collect(result, outputs)
    assert outputs[0].tokens == generate(reference("llama"), prompt, 12)


def test_positions_end_at_the_models_length(make_driver: MakeDriver) -> None:
    driver = make_driver(max_model_len=10)
    output = driver.decode(
        [driver.open(0, random_tokens(6), blocks_for(driver, 0, 24))], num_steps=32
    )[0]
    assert (len(output.tokens), output.end) == (5, SequenceEnd.NO_ROOM)


def test_tokens_ahead_in_position_appear_when_they_are_passed(make_driver: MakeDriver) -> None:
    """A table has slots at positions that the sequence has not reached yet."""
    results = []
    for num_steps in (1, 6):
        driver = make_driver()
        blocks = blocks_for(driver, 0, 24)
        far = driver.flat(blocks, [20, 21])
        driver.good(
            operations=[driver.write_table(5, blocks, [20, 21])],
            forward=forward_rows([Row([9, 10], 5, [8, 10], far)], outputs=False),
        )
        operations, row = driver.open(0, random_tokens(6), blocks, stop=StopSpec(max_tokens=8))
        operations[0] = driver.write_table(0, blocks, [*range(6), 20, 21])
        outputs = driver.decode([(operations, row)], num_steps=num_steps)
        results.append(outputs[0].tokens)
    assert results[0] == results[1]
    plain = make_driver()
    without = plain.decode(
        [plain.open(0, random_tokens(6), blocks_for(plain, 0, 24), stop=StopSpec(max_tokens=8))]
    )
    assert results[0][:3] == without[0].tokens[:3]


@pytest.mark.parametrize("reverse", [False, True])
def test_stop_strings_straddle_tokens(
    reverse: bool, make_driver: MakeDriver, checkpoint: Callable[[str], Path]
) -> None:
    """The string that ends first wins, wherever the token boundaries are."""
    tokenizer = load_tokenizer(str(checkpoint("llama")))
    driver = make_driver()
    bias = SamplerSpec(
        (Processor("logit_bias", {"tokens": [0, 1, 2], "biases": [-1e4, -1e4, -1e4]}),)
    )
    free = driver.decode(
        [
            driver.open(
                0,
                random_tokens(6),
                blocks_for(driver, 0, 40),
                sampler=bias,
                stop=StopSpec(max_tokens=20),
            )
        ]
    )[0].tokens
    text = b"".join(tokenizer.token_bytes(token) for token in free)
    strings = (text[3:6], text[2:9])
    if reverse:
        strings = strings[::-1]
    first = min(range(2), key=lambda i: text.find(strings[i]) + len(strings[i]))
    end = text.find(strings[first]) + len(strings[first])
    sizes = np.cumsum([len(tokenizer.token_bytes(token)) for token in free])
    stopped = driver.decode(
        [
            driver.open(
                0,
                random_tokens(6),
                blocks_for(driver, 0, 40),
                sampler=bias,
                stop=StopSpec(max_tokens=20, strings=(b"\xff\xfe\xfd", *strings)),
            )
        ]
    )[0]
    assert stopped.tokens == free[: int(np.searchsorted(sizes, end)) + 1]
    assert (stopped.end, stopped.matched) == (SequenceEnd.STOP_STRING, first + 1)


def test_scores_of_a_prompt(make_driver: MakeDriver, reference: Reference) -> None:
    driver = make_driver()
    prompt = random_tokens(80)
    forward = forward_rows([Row([4]), Row(prompt)], outputs=False)
    forward.score_targets = i32([-1, *prompt[1:], -1])
    forward.num_scores = 3
    result = driver.good(forward=forward)
    with torch.inference_mode():
        logits = reference("llama")(torch.tensor([prompt])).logits[0].double()
    wanted = logits.log_softmax(-1)
    chosen = wanted[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].numpy()
    np.testing.assert_allclose(result.score_logprobs[1:-1], chosen, atol=1e-4)
    assert np.isnan(result.score_logprobs[[0, -1]]).all()
    top = wanted[:-1].topk(3)
    assert result.score_ids[1:-1].tolist() == top.indices.tolist()
    np.testing.assert_allclose(result.score_top[1:-1], top.values.numpy(), atol=1e-4)


def test_a_message_that_contradicts_itself_ends_the_engine(make_driver: MakeDriver) -> None:
    driver = make_driver()
    forward = forward_rows([Row([5, 6])])
    forward.row_starts = i32([0, 3])
    with pytest.raises(EngineFault, match="row_starts"):
        driver.send(forward=forward)
    with pytest.raises(EngineFault, match="closed or has failed"):
        driver.send()


def test_closing_is_idempotent(make_driver: MakeDriver) -> None:
    engine = make_driver().engine
    engine.close()
    engine.close()


def test_stop_tokens_of_one_sequence_are_not_looked_for_in_others(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device has room for few, and runs rows with more of them slowly."""
    widths: list[int] = []
    monkeypatch.setattr(
        TorchRunner,
        "decode_fused",
        lambda runner, rows: widths.append(rows.stop_tokens_RW.shape[1]),
    )
    driver = make_driver(backend="torch")
    for sequence, stops in enumerate([range(200, 300), (1, 2)]):
        stop = StopSpec(max_tokens=3, min_tokens=3, token_ids=tuple(stops))
        blocks = blocks_for(driver, sequence, 16)
        driver.decode([driver.open(sequence, random_tokens(5), blocks, stop=stop)])
    assert (widths[0], widths[-1]) == (100, 2)

"""Messages that only advance sequences: in one call of the kernel, and stage by stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from engine_driver import Driver, forward_rows, i32

from quire.core.batch import AdvanceRows, CloseSequences
from quire.core.batch_result import BatchResult, SequenceEnd
from quire.core.decoding import Processor, SamplerSpec, StopSpec
from quire.core.errors import EngineFault
from quire.core.ids import SequenceId
from quire.engine.cpu.library import INSTRUCTION_SETS, kernel_report
from quire.engine.cpu.native_runner import NativeRunner

PROBLEMS = {state.isa: state.problem for state in kernel_report().states}
MakeDriver = Callable[..., Driver]
Send = Callable[[Driver], BatchResult]

DRAWN = SamplerSpec(
    processors=(Processor("top_k", {"k": 40}), Processor("temperature", {"temperature": 1.5})),
    greedy=False,
    seed=4,
)
COLUMNS = ("cursor", "position", "last_token", "num_generated", "end", "matched")
RUNNING = int(SequenceEnd.RUNNING)


@pytest.fixture(params=INSTRUCTION_SETS)
def isa(request: pytest.FixtureRequest) -> str:
    if PROBLEMS[request.param] is not None:
        pytest.skip(f"{request.param}: {PROBLEMS[request.param]}")
    return str(request.param)


@dataclass
class Calls:
    """The runner's results for the messages that it was asked to advance."""

    were_done: list[bool] = field(default_factory=list)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    seen, advance = Calls(), NativeRunner.advance

    def counted(self: NativeRunner, *arguments: Any) -> Any:
        done = advance(self, *arguments)
        seen.were_done.append(done is not None)
        return done

    monkeypatch.setattr(NativeRunner, "advance", counted)
    return seen


def sequences_of(driver: Driver) -> Any:
    return driver.engine._step._sequences  # type: ignore[attr-defined]


def opened(driver: Driver) -> Driver:
    """Four sequences after their first token: with a token limit, stop tokens, few free slots,
    epoch 2."""
    some = tuple(range(0, 320, 7))
    kinds: list[dict[str, Any]] = [
        {"stop": StopSpec(max_tokens=6)},
        {"stop": StopSpec(max_tokens=40, min_tokens=4, token_ids=some), "sampler": DRAWN},
        {"stop": StopSpec(max_tokens=40), "limit": 14},
        {"stop": StopSpec(max_tokens=40), "limit": 14, "sampler": DRAWN, "epoch": 2},
    ]
    started = []
    for number, kind in enumerate(kinds):
        prompt = np.random.default_rng(number).integers(3, 300, 5 + number).tolist()
        blocks = list(range(number * 16, number * 16 + 16))
        started.append(driver.open(number, prompt, blocks, **kind))
    driver.good(
        operations=[operation for operations, _ in started for operation in operations],
        forward=forward_rows([row for _, row in started], outputs=False),
    )
    return driver


def advancing(num_steps: int, *entries: tuple[int, int, int]) -> Send:
    """A message; entries are (sequence, epoch, most steps)."""
    sequences, epochs, max_steps = (i32(column) for column in zip(*entries, strict=True))
    rows = AdvanceRows(sequences=sequences, epochs=epochs, max_steps=max_steps)
    return lambda driver: driver.send(num_steps=num_steps, advance=rows)


ALL = ((3, 2, 9), (0, 1, 9), (1, 1, 9), (2, 1, 9))
MESSAGES = [
    advancing(3, (0, 1, 3), (1, 1, 2), (2, 1, 3), (3, 2, 0)),
    advancing(2, (3, 1, 2), (1, 1, 9)),  # the epoch of 3 is stale
    advancing(6, *ALL),  # room for 4 tokens in sequence 2; for all 6 in 3, which ends next
    advancing(9, *ALL),
    advancing(9, *ALL),
    advancing(9, (2, 1, 9), (0, 1, 9)),  # both have ended
]


def told(driver: Driver, messages: list[Send]) -> list[object]:
    """The answers, and the engine's state after each."""
    said: list[object] = []
    sequences = sequences_of(driver)
    tables = driver.engine._step._operations._tables  # type: ignore[attr-defined]
    for message in messages:
        result = message(driver)
        result.elapsed_s = 0.0
        plain = msgspec.to_builtins(
            result, enc_hook=lambda array: [str(array.dtype), array.tolist()]
        )
        said.append((plain, [getattr(sequences, name).tolist() for name in COLUMNS]))
        said.append(tables.visible_TP.tolist())
    return said


def test_one_call_does_what_the_stages_do(
    isa: str, make_driver: MakeDriver, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened(make_driver(kernel_isa=isa))
    at_once = told(driver, MESSAGES)
    assert calls.were_done == [True] * len(MESSAGES)
    ends = {SequenceEnd(end) for end in sequences_of(driver).end[:4]}
    assert {SequenceEnd.MAX_TOKENS, SequenceEnd.STOP_TOKEN, SequenceEnd.NO_ROOM} <= ends
    monkeypatch.setattr(NativeRunner, "advance", lambda *_: None)
    assert told(opened(make_driver(kernel_isa=isa)), MESSAGES) == at_once


def test_a_sequence_without_a_choice_fails_alone(
    make_driver: MakeDriver, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def excluding() -> Driver:
        """Sequence 0 can sample no token after its next one."""
        driver = opened(make_driver(backend="cpu"))
        vocab_size, sequences = driver.info.vocab_size, sequences_of(driver)
        sequences._set_stop_tokens(0, tuple(range(vocab_size)))
        sequences.min_tokens[0] = 100
        return driver

    message = advancing(3, (0, 1, 3), (3, 2, 3))
    driver = excluding()
    at_once = told(driver, [message])
    assert calls.were_done == [True]
    assert sequences_of(driver).end[[0, 3]].tolist() == [SequenceEnd.FAILED, RUNNING]
    monkeypatch.setattr(NativeRunner, "advance", lambda *_: None)
    assert told(excluding(), [message]) == at_once


def test_sequences_that_are_not_plain_are_left_to_the_stages(
    make_driver: MakeDriver, calls: Calls
) -> None:
    """A sequence with log probabilities prevents the single call only if it would run."""
    driver = opened(make_driver(backend="cpu"))
    operations, row = driver.open(4, [5, 6], [80, 81], num_logprobs=1)
    driver.good(operations=operations, forward=forward_rows([row], outputs=False))
    results = [
        message(driver)
        for message in (
            advancing(2, (0, 1, 2), (4, 1, 2)),
            advancing(2, (0, 1, 2), (4, 7, 2)),
            advancing(2, (0, 1, 2), (4, 1, 0)),
        )
    ]
    assert calls.were_done == [False, True, True]
    assert [len(result.sequences.tokens) for result in results] == [4, 2, 1]
    assert len(results[0].sequences.logprobs) == 4


def test_unknown_sequences_are_reported(make_driver: MakeDriver, calls: Calls) -> None:
    driver = opened(make_driver(backend="cpu"))
    for stranger in (-1, 9, 1 << 20):
        result = advancing(1, (0, 1, 1), (stranger, 1, 1))(driver)
        assert [(f.stage, f.index, f.error.code) for f in result.failures] == [
            ("advance", 1, "unknown_handle")
        ]
        assert len(result.sequences.tokens) == 1
    assert calls.were_done == [False] * 3


def cut_table(driver: Driver) -> BatchResult:
    return driver.send(operations=[driver.write_table(0, [0, 1], range(6))])


@pytest.mark.parametrize(
    ("before", "message", "what"),
    [
        (None, advancing(2, (0, 1, 2), (1, 1, 2), (0, 1, 2)), "occurs in it twice"),
        (cut_table, advancing(5, (0, 1, 5)), "beyond its page table"),
        (None, advancing(0, (0, 1, 2)), "num_steps is 0"),
        (
            None,
            lambda driver: driver.send(
                advance=AdvanceRows(sequences=i32([0, 1]), epochs=i32([1]), max_steps=i32([1, 1]))
            ),
            "differ in length",
        ),
    ],
    ids=["twice", "table", "steps", "lengths"],
)
def test_broken_messages_are_refused(
    before: Send | None, message: Send, what: str, make_driver: MakeDriver
) -> None:
    driver = opened(make_driver(backend="cpu"))
    if before is not None:
        before(driver)
    with pytest.raises(EngineFault, match=what):
        message(driver)


def test_a_new_sequence_in_an_old_row_is_looked_at_anew(
    make_driver: MakeDriver, calls: Calls
) -> None:
    driver = opened(make_driver(backend="cpu"))
    assert sequences_of(driver).is_plain[:4].all()
    driver.good(operations=[CloseSequences(sequences=[SequenceId(0)])])
    stop = StopSpec(max_tokens=9, strings=(b"zz",))
    operations, row = driver.open(0, [5, 6], [80, 81], stop=stop)
    driver.good(operations=operations, forward=forward_rows([row], outputs=False))
    assert not sequences_of(driver).is_plain[0]
    advancing(2, (0, 1, 2))(driver)
    assert calls.were_done == [False]

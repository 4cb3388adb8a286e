"""A message's report of its sequences, collected step by step."""

from __future__ import annotations

import numpy as np

from quire.engine.sequence_report import Entries, SampledTokens, SequenceReport


def i64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def report_of(*sequences: int) -> SequenceReport:
    count = len(sequences)
    return SequenceReport(
        Entries(
            sequences=i64(*sequences),
            epochs=i64(*[0] * count),
            steps_left=i64(*[1] * count),
            inert=np.zeros(count, np.bool_),
            unknown=np.zeros(count, np.bool_),
            indices=np.arange(count),
            num_first=0,
        )
    )


def test_a_failure_is_reported_at_its_entry() -> None:
    report = report_of(7, 3, 5)
    report.entries.num_first = 1
    report.entries.indices[:] = 4, 0, 1
    sources = [report.entries.source(entry) for entry in range(3)]
    assert sources == [("forward", 4), ("advance", 0), ("advance", 1)]


def test_a_loop_in_which_every_sequence_failed_leaves_no_history() -> None:
    report = report_of(7, 3)
    report.record(SampledTokens(i64(), i64(), None))
    assert report.unflushed() == []


def test_tokens_are_told_once_by_sequence_in_order_of_time() -> None:
    report = report_of(7, 3)
    report.record(SampledTokens(i64(0, 1), i64(10, 20), None))
    report.record(SampledTokens(i64(1), i64(21), None))
    told = [(sequence, tokens.tolist()) for sequence, tokens in report.unflushed()]
    assert told == [(7, [10]), (3, [20, 21])]
    assert report.unflushed() == []

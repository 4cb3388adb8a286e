"""The standard processors pass the suite for packages' processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from sampling_rows import row, spec
from torch import Tensor

from quire.core.decoding import Params
from quire.engine.sampling.candidates import Candidates
from quire.engine.sampling.declarations import Parameter
from quire.engine.sampling.group_memory import GroupMemory
from quire.engine.sampling.protocol import PROTOCOL_VERSION, History, Rows
from quire.engine.sampling.registry import STANDARD, installed
from quire.engine.sampling.table import SamplerTable
from quire.engine.sampling.trial import Trial
from quire.testing.conformance import ProcessorSuite


class AsPackage:
    """A standard processor behind the Protocol, under an unused name."""

    protocol_version = PROTOCOL_VERSION
    needs_history = True

    def __init__(self, standard: str) -> None:
        self.name = f"my_{standard}"
        self.standard = standard
        self.parameters: Mapping[str, Parameter] = STANDARD[standard].parameters

    def bind(self, params: Sequence[Params], rows: Rows) -> Bound:
        return Bound(self.standard, params, rows)


class Bound:
    def __init__(self, name: str, params: Sequence[Params], rows: Rows) -> None:
        self.name, self.params, self.rows = name, params, rows
        kind = STANDARD[name]
        self.step = kind.bind([kind.prepare(one) for one in params], rows)

    def __call__(self, scores_SV: Tensor, history: History) -> Tensor:
        rows = self.rows
        table = SamplerTable(rows.num_rows, rows.vocab_size, rows.device, installed())
        for place, length in enumerate(history.lengths_S.tolist()):
            sampler = spec([(self.name, self.params[place])])
            table.set(place, row(sampler, history.tokens_SL[place, :length].tolist()))
        indices = torch.arange(rows.num_rows)
        candidates = Candidates(scores_SV)
        self.step(candidates, GroupMemory(table.stores, indices.numpy(), indices))
        return candidates.over_vocabulary()


class Standard(ProcessorSuite):
    __test__ = False
    standard = ""

    def make_trial(self) -> Trial:
        return Trial(AsPackage(self.standard))


class TestTemperature(Standard):
    __test__ = True
    standard = "temperature"
    params = ({"temperature": 0.5}, {"temperature": 2}, {"temperature": 1e-3})
    refused = ({"temperature": 0}, {})


class TestTopK(Standard):
    __test__ = True
    standard = "top_k"
    params = ({"k": 1}, {"k": 7}, {"k": 1 << 31})
    refused = ({"k": 0}, {"k": 1.5})


class TestTopP(Standard):
    __test__ = True
    standard = "top_p"
    params = ({"p": 0.1}, {"p": 0.9}, {"p": 1.0}, {"p": 1e-9})
    refused = ({"p": 0},)


class TestMinP(Standard):
    __test__ = True
    standard = "min_p"
    params = ({"p": 0.1}, {"p": 1.0}, {"p": 1e-4})
    refused = ({"p": 1.1},)


class TestTypical(Standard):
    __test__ = True
    standard = "typical"
    params = ({"p": 0.1}, {"p": 0.9}, {"p": 1.0})
    refused = ({"p": -1},)


class TestDry(Standard):
    __test__ = True
    standard = "dry"
    params = (
        {"multiplier": 1.0, "allowed_length": 1},
        {"multiplier": 0.5, "base": 1.1, "breakers": [0]},
        {"multiplier": 2.0, "range": 9},
    )
    refused = ({"multiplier": -1}, {"multiplier": 1, "range": -5})


class TestRepetitionPenalty(Standard):
    __test__ = True
    standard = "repetition_penalty"
    params = ({"penalty": 1.3}, {"penalty": 0.7}, {"penalty": 1})
    refused = ({"penalty": 0},)


class TestFrequencyPenalty(Standard):
    __test__ = True
    standard = "frequency_penalty"
    params = ({"penalty": 0.3}, {"penalty": -0.5}, {"penalty": 0})


class TestPresencePenalty(Standard):
    __test__ = True
    standard = "presence_penalty"
    params = ({"penalty": 0.3}, {"penalty": -0.5}, {"penalty": 0})


class TestLogitBias(Standard):
    __test__ = True
    standard = "logit_bias"
    params = (
        {"tokens": [1, 2, 1], "biases": [0.5, -1, 3]},
        {"tokens": [], "biases": []},
        {"tokens": [63], "biases": [100]},
    )
    refused = ({"tokens": [64], "biases": [1]},)


class TestAllowedTokens(Standard):
    __test__ = True
    standard = "allowed_tokens"
    params = ({"tokens": [1, 5]}, {"tokens": [63]})
    refused = ({"tokens": []},)


class TestBadWords(Standard):
    __test__ = True
    standard = "bad_words"
    params = ({"tokens": [1, [0, 2], [1, 2]]}, {"tokens": [[3, 3, 3], [2, 1]]}, {"tokens": []})
    refused = ({"tokens": [[]]},)


def test_every_standard_processor_is_here() -> None:
    assert {one.standard for one in Standard.__subclasses__()} == STANDARD.keys()

"""``ProcessorSuite``: requirements on every sampling processor, standard or from a package.

Works on arrays only. A ``ProcessorTrial`` binds a processor and applies it to them; the engine's is
``quire.engine.sampling.trial.Trial``.

Shapes: S rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quire.core.decoding import Params

F32 = NDArray[np.float32]
Histories = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class AppliedProcessor:
    """New scores ``[S, V]``, and whether the processor modified its inputs."""

    scores_SV: NDArray[Any]
    inputs_changed: bool


class ProcessorTrial(Protocol):
    """A processor and a way to try it out, over one vocabulary."""

    @property
    def vocab_size(self) -> int: ...

    def problem(self, params: Params) -> str | None:
        """Why these parameters, or the processor as a whole, are refused; None if they are
        accepted."""
        ...

    def apply(
        self,
        params: Sequence[Params],
        steps: Sequence[tuple[F32, Histories]],
        num_prompt: int = 0,
    ) -> list[AppliedProcessor]:
        """Bind once for rows with these parameters and apply to each step's scores ``[S, V]`` and
        histories, of which the first ``num_prompt`` tokens are the prompt."""
        ...


class ProcessorSuite:
    """Subclass it, define how to make the trial and which parameters to use, let pytest collect it.

    ``params``   at least two valid sets of parameters that change scores of the histories here.
    ``refused``  sets that must be refused.
    """

    params: Sequence[Params] = ()
    refused: Sequence[Params] = ()

    def make_trial(self) -> ProcessorTrial:
        raise NotImplementedError("say how to make the processor under test")

    def rows(self, trial: ProcessorTrial, count: int = 9) -> tuple[list[Params], F32, Histories]:
        """Rows with different parameters, scores and history lengths, with many repeated tokens."""
        assert len(self.params) >= 2, "give at least two sets of parameters"
        random = np.random.default_rng(7)
        scores_SV = (random.normal(size=(count, trial.vocab_size)) * 3).astype(np.float32)
        kinds = min(4, trial.vocab_size)
        histories = [random.integers(0, kinds, 5 * place).tolist() for place in range(count)]
        return (
            [self.params[place % len(self.params)] for place in range(count)],
            scores_SV,
            histories,
        )

    def one(
        self, trial: ProcessorTrial, params: Sequence[Params], scores_SV: F32, histories: Histories
    ) -> NDArray[Any]:
        return trial.apply(params, [(scores_SV, histories)])[0].scores_SV

    def test_parameters_are_checked(self) -> None:
        trial = self.make_trial()
        assert [trial.problem(one) for one in self.params] == [None] * len(self.params)
        assert [one for one in self.refused if trial.problem(one) is None] == []
        assert trial.problem({**self.params[0], "no_such_parameter": 1}) is not None

    def test_it_changes_something(self) -> None:
        """Guards the other tests against a processor that does nothing on their rows."""
        trial = self.make_trial()
        params, scores_SV, histories = self.rows(trial)
        assert not np.array_equal(self.one(trial, params, scores_SV, histories), scores_SV)

    def test_scores_are_float32_of_the_same_shape(self) -> None:
        trial = self.make_trial()
        params, scores_SV, histories = self.rows(trial)
        found = self.one(trial, params, scores_SV, histories)
        assert found.dtype == np.float32
        assert found.shape == scores_SV.shape

    def test_rows_are_independent(self) -> None:
        """A row's result has the same bits alone, with any other rows and at any index."""
        trial = self.make_trial()
        params, scores_SV, histories = self.rows(trial)
        together = self.one(trial, params, scores_SV, histories)
        for place in range(len(params)):
            alone = self.one(
                trial, [params[place]], scores_SV[place : place + 1], [histories[place]]
            )
            np.testing.assert_array_equal(alone[0], together[place])
        order = np.random.default_rng(1).permutation(len(params))
        shuffled = self.one(
            trial,
            [params[place] for place in order],
            scores_SV[order],
            [histories[place] for place in order],
        )
        np.testing.assert_array_equal(shuffled, together[order])

    def test_it_is_deterministic(self) -> None:
        trial = self.make_trial()
        params, scores_SV, histories = self.rows(trial)
        first = self.one(trial, params, scores_SV, histories)
        np.testing.assert_array_equal(self.one(trial, params, scores_SV, histories), first)
        again = self.one(self.make_trial(), params, scores_SV, histories)
        np.testing.assert_array_equal(again, first)

    def test_inputs_are_not_written_to(self) -> None:
        trial = self.make_trial()
        params, scores_SV, histories = self.rows(trial)
        steps = [(scores_SV, histories), (scores_SV + 1, histories)]
        assert [one.inputs_changed for one in trial.apply(params, steps)] == [False, False]

    def test_excluded_tokens_stay_excluded(self) -> None:
        """``-inf`` scores stay ``-inf``, and no other non-finite score appears."""
        trial = self.make_trial()
        params, scores_SV, histories = self.rows(trial)
        excluded_SV = np.random.default_rng(2).random(scores_SV.shape) < 0.3
        excluded_SV[0] = True
        excluded_SV[0, 1] = False
        scores_SV[excluded_SV] = -np.inf
        found = self.one(trial, params, scores_SV, histories)
        assert np.all(np.isneginf(found[excluded_SV]))
        assert np.all(np.isfinite(found) | np.isneginf(found))

    def test_it_is_rebuilt_from_history(self) -> None:
        """Bound once for many tokens or bound anew in every step, it gives the same scores."""
        trial = self.make_trial()
        params, scores_SV, begun = self.rows(trial)
        random = np.random.default_rng(3)
        histories, steps = [list(one) for one in begun], []
        for step in range(12):
            steps.append((scores_SV + np.float32(step), [list(one) for one in histories]))
            for history in histories:
                history.append(int(random.integers(0, min(4, trial.vocab_size))))
        kept = trial.apply(params, steps)
        for (scores, so_far), one in zip(steps, kept, strict=True):
            np.testing.assert_array_equal(one.scores_SV, self.one(trial, params, scores, so_far))

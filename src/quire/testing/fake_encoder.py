"""An encoder without a model: tests can predict its rows from the tokens."""

from __future__ import annotations

import numpy as np

from quire.core.encoding import EncodeBatch, EncodeResult, EncoderInfo, EncoderKind

VOCAB_SIZE = 1 << 16


class FakeEncoder:
    """An ``EncoderCore``. An embedding counts the tokens by id modulo ``dimensions``; a score is
    the share of the second segment's tokens that also occur in the first. A batch reports
    ``batch_s`` of time, and ``token_s`` for each of its tokens."""

    def __init__(
        self,
        kind: EncoderKind = "embedding",
        *,
        dimensions: int = 8,
        max_tokens: int = 64,
        max_batch_tokens: int = 8192,
        max_pending: int = 8192,
        token_s: float = 0.0,
        batch_s: float = 0.0,
    ) -> None:
        self._kind = kind
        self._dimensions = dimensions if kind == "embedding" else 1
        self._max_tokens = max_tokens
        self._max_batch_tokens = max_batch_tokens
        self._max_pending = max_pending
        self._token_s = token_s
        self._batch_s = batch_s

    @property
    def info(self) -> EncoderInfo:
        return EncoderInfo(
            model="fake",
            family="fake",
            kind=self._kind,
            dimensions=self._dimensions,
            max_tokens=self._max_tokens,
            vocab_size=VOCAB_SIZE,
            num_types=2,
            num_parameters=0,
            max_batch_tokens=self._max_batch_tokens,
            max_pending=self._max_pending,
        )

    def encode(self, batch: EncodeBatch) -> EncodeResult:
        ends = np.cumsum(batch.lengths)[:-1]
        parts = zip(np.split(batch.tokens, ends), np.split(batch.types, ends), strict=True)
        rows = [self._row(tokens, types) for tokens, types in parts]
        return EncodeResult(
            number=batch.number,
            rows=np.asarray(rows, np.float32),
            elapsed_s=self._batch_s + len(batch.tokens) * self._token_s,
        )

    def _row(self, tokens: np.ndarray, types: np.ndarray) -> np.ndarray:
        if self._kind == "embedding":
            return np.bincount(tokens % self._dimensions, minlength=self._dimensions)
        return np.asarray([np.isin(tokens[types == 1], tokens[types == 0]).mean()])

"""The samplers' memory of rows: the tokens in order, and how often each one occurred.

Two stores, indexed by table row, that grow on demand. Both can be rebuilt from a row's history at
any time; ``append`` updates them on the device, without reading tokens on the host.

Shapes: R table rows, S requested rows, L tokens per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.engine.sampling.protocol import History

I64 = NDArray[np.int64]

_MIN_WIDTH = 64


class HistoryStore:
    """The tokens of each row in order, padded with -1."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tokens_RL = torch.full((0, _MIN_WIDTH), -1, dtype=torch.int32, device=device)
        self._lengths_R = np.zeros(0, np.int64)
        self._num_generated_R = np.zeros(0, np.int64)

    def set(self, row: int, tokens: I32, num_generated: int) -> None:
        if row >= len(self._lengths_R) and not len(tokens):
            return
        self._reserve(row + 1, len(tokens) + 1)
        self._tokens_RL[row] = -1
        if len(tokens):
            copied = torch.tensor(tokens, dtype=torch.int32)
            self._tokens_RL[row, : len(tokens)] = copied.to(self._device)
        self._lengths_R[row] = len(tokens)
        self._num_generated_R[row] = num_generated

    def append(self, rows_S: I64, index_S: Tensor, tokens_S: Tensor) -> None:
        """Append one token to each row; ``index_S`` is ``rows_S`` on the device."""
        self._reserve(int(rows_S.max()) + 1, 0)
        columns_S = self._lengths_R[rows_S]
        self._reserve(0, int(columns_S.max()) + 1)
        columns = torch.from_numpy(columns_S).to(self._device)
        self._tokens_RL[index_S, columns] = tokens_S.to(torch.int32)
        self._lengths_R[rows_S] += 1
        self._num_generated_R[rows_S] += 1

    def view(self, rows_S: I64, index_S: Tensor) -> History:
        self._reserve(int(rows_S.max()) + 1, 0)
        lengths_S = self._lengths_R[rows_S]
        tokens_SL = self._tokens_RL[:, : int(lengths_S.max())].index_select(0, index_S)
        return History(
            tokens_SL.to(torch.int64),
            torch.from_numpy(lengths_S).to(self._device),
            torch.from_numpy(self._num_generated_R[rows_S]).to(self._device),
        )

    def _reserve(self, num_rows: int, width: int) -> None:
        self._tokens_RL = grown(self._tokens_RL, num_rows, width, -1)
        missing = len(self._tokens_RL) - len(self._lengths_R)
        if missing:
            self._lengths_R = np.pad(self._lengths_R, (0, missing))
            self._num_generated_R = np.pad(self._num_generated_R, (0, missing))


@dataclass(frozen=True, slots=True)
class Counts:
    """Distinct tokens of each row ``[S, L]`` with how often each occurred: ``seen`` in the whole
    history, ``generated`` in the sampled part. Columns after a row's last repeat its first, so that
    writing to all of them is harmless; a row without tokens names token 0 with zeros."""

    tokens_SL: Tensor
    seen_SL: Tensor
    generated_SL: Tensor


class CountStore:
    """How often each token of a row occurred, by distinct token: thousands of entries, where a
    dense count would take the vocabulary's size for every row."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._tokens_RL = torch.zeros((0, _MIN_WIDTH), dtype=torch.int64, device=device)
        self._counts_2RL = torch.zeros((2, 0, _MIN_WIDTH), device=device)
        self._lengths_R = torch.zeros(0, dtype=torch.int64, device=device)
        # upper bound of distinct tokens, known without reading from the device
        self._bounds_R = np.zeros(0, np.int64)

    def set(self, row: int, seen: I32, num_generated: int) -> None:
        if row >= len(self._bounds_R) and not len(seen):
            return
        inside = (seen >= 0) & (seen < self._vocab_size)
        tokens, seen_counts = np.unique(seen[inside], return_counts=True)
        sampled = np.arange(len(seen)) >= len(seen) - num_generated
        places = np.searchsorted(tokens, seen[inside & sampled])
        generated_counts = np.bincount(places, minlength=len(tokens))
        length = len(tokens)
        self._reserve(row + 1, length + 1)
        self._tokens_RL[row] = 0
        self._counts_2RL[:, row] = 0
        self._tokens_RL[row, :length] = torch.from_numpy(tokens.astype(np.int64)).to(self._device)
        counts = np.stack((seen_counts, generated_counts)).astype(np.float32)
        self._counts_2RL[:, row, :length] = torch.from_numpy(counts).to(self._device)
        self._lengths_R[row] = length
        self._bounds_R[row] = length

    def append(self, rows_S: I64, index_S: Tensor, tokens_S: Tensor) -> None:
        """Count one more token of each row. ``index_S`` is ``rows_S`` on the device."""
        self._reserve(int(rows_S.max()) + 1, 0)
        bound = int(self._bounds_R[rows_S].max())
        self._reserve(0, bound + 1)
        columns_L = torch.arange(bound, device=self._device)
        lengths_S = self._lengths_R.index_select(0, index_S)
        known_SL = self._tokens_RL[:, :bound].index_select(0, index_S) == tokens_S[:, None]
        known_SL &= columns_L < lengths_S[:, None]
        is_known_S = known_SL.any(dim=1)
        column_S = torch.where(is_known_S, (known_SL * columns_L).sum(dim=1), lengths_S)
        self._tokens_RL[index_S, column_S] = tokens_S
        self._counts_2RL[:, index_S, column_S] += 1.0
        self._lengths_R[index_S] = lengths_S + ~is_known_S
        self._bounds_R[rows_S] = np.minimum(self._bounds_R[rows_S] + 1, self._vocab_size)

    def view(self, rows_S: I64, index_S: Tensor) -> Counts:
        self._reserve(int(rows_S.max()) + 1, 0)
        width = max(1, int(self._bounds_R[rows_S].max()))
        tokens_SL = self._tokens_RL[:, :width].index_select(0, index_S)
        counts_2SL = self._counts_2RL[:, :, :width].index_select(1, index_S)
        columns_L = torch.arange(width, device=self._device)
        beyond_SL = columns_L >= self._lengths_R.index_select(0, index_S)[:, None]
        tokens_SL = torch.where(beyond_SL, tokens_SL[:, :1], tokens_SL)
        counts_2SL = torch.where(beyond_SL, counts_2SL[:, :, :1], counts_2SL)
        return Counts(tokens_SL, counts_2SL[0], counts_2SL[1])

    def _reserve(self, num_rows: int, width: int) -> None:
        self._tokens_RL = grown(self._tokens_RL, num_rows, width, 0)
        rows, width = self._tokens_RL.shape
        if self._counts_2RL.shape[1:] != (rows, width):
            self._counts_2RL = torch.stack([grown(one, rows, width, 0) for one in self._counts_2RL])
        if len(self._lengths_R) != rows:
            missing = rows - len(self._lengths_R)
            self._lengths_R = torch.cat((self._lengths_R, self._lengths_R.new_zeros(missing)))
            self._bounds_R = np.pad(self._bounds_R, (0, missing))


def grown(table_RL: Tensor, num_rows: int, width: int, fill: int) -> Tensor:
    """The table enlarged to ``num_rows`` and ``width``, at least doubled where it grows."""
    old_rows, old_width = table_RL.shape
    new_rows = old_rows if num_rows <= old_rows else max(num_rows, 2 * old_rows, 8)
    new_width = old_width if width <= old_width else max(width, 2 * old_width)
    if (new_rows, new_width) == (old_rows, old_width):
        return table_RL
    larger = table_RL.new_full((new_rows, new_width), fill)
    larger[:old_rows, :old_width] = table_RL
    return larger

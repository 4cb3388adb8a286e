"""An encoder loaded from a directory: batches of sequences in, rows of numbers out.

Owns the weights and the padding of ragged batches: sequences are sorted by length and run in
groups, so that a short one is not padded to the longest of all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from quire.core.batch import F32, I32
from quire.core.config import EncoderConfig
from quire.core.encoding import EncodeBatch, EncodeResult, EncoderInfo
from quire.core.errors import InvalidArgument
from quire.engine.checkpoint.config_accounting import account
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.checkpoint.model_directory import ModelDirectory, locate
from quire.engine.encoders.body import make_body
from quire.engine.encoders.config import read_shape
from quire.engine.encoders.heads import EncoderHead, embedding_head
from quire.engine.encoders.known_keys import BIDIRECTIONAL, CAUSAL
from quire.engine.encoders.late_interaction import LateInteraction, check_late
from quire.engine.encoders.late_texts import NUM_TYPES
from quire.engine.encoders.modules import kind_of, read_modules
from quire.engine.encoders.scores import ScoreHead, is_activated
from quire.engine.encoders.token_cache import TokenCache
from quire.engine.encoders.transformer import ignored_tensor
from quire.engine.layers.parameters import Parameters
from quire.engine.weights import Checkpoint

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]

_DTYPES = {
    "auto": torch.float32,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_MAX_PADDING = 1.25
"""The largest allowed ratio of a group's size with padding to its size without."""


class TorchEncoder:
    """``EncoderCore`` in PyTorch.

    Raises:
        ModelError: the directory cannot be served.
    """

    def __init__(self, config: EncoderConfig, progress: Progress | None = None) -> None:
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self._device = torch.device("cpu" if config.device == "auto" else config.device)
        directory = locate(config.source)
        raw = directory.read_config()
        reader = ConfigReader(raw, str(directory.path / "config.json"))
        self._shape = read_shape(reader)
        self._modules = read_modules(directory)
        self._kind = kind_of(self._shape, self._modules)
        is_late, scores_pairs = config.late_interaction, config.scores_pairs
        if scores_pairs:
            check_late(self._shape, self._modules, self._kind, directory.path)
        parameters = Parameters(self._device, _DTYPES[config.dtype])
        self._load(parameters, directory, reader, progress)
        sizes = [destination.target.numel() for destination in parameters.destinations.values()]
        self._info = EncoderInfo(
            model=str(config.name),
            family=self._shape.family,
            kind="cross_encoder" if is_late else self._kind,
            dimensions=1 if is_late else self._head.dimensions,
            max_tokens=self._shape.max_tokens * (2 if scores_pairs else 1),
            vocab_size=self._shape.vocab_size,
            num_types=NUM_TYPES if scores_pairs else self._shape.num_types,
            num_parameters=sum(sizes),
            max_batch_tokens=config.max_batch_tokens,
            max_pending=config.max_pending,
        )
        self._late: LateInteraction | None = None
        if scores_pairs:
            cache = TokenCache(config.token_cache_bytes, self._token_vectors)
            embed = None if is_late else self._embedded
            self._late = LateInteraction(cache, embed, self._info.dimensions)

    @property
    def info(self) -> EncoderInfo:
        return self._info

    def _load(
        self,
        parameters: Parameters,
        directory: ModelDirectory,
        reader: ConfigReader,
        progress: Progress | None,
    ) -> None:
        shape = self._shape
        with Checkpoint(directory) as checkpoint:
            self._body, score = make_body(
                parameters, shape, self._kind, reader, directory, self._modules, checkpoint
            )
            for warning in account(reader, BIDIRECTIONAL if shape.body else CAUSAL):
                logger.warning("%s", warning)
            wanted = parameters.destinations
            checkpoint.check(wanted, lambda name: name not in wanted and ignored_tensor(name))
            checkpoint.load(wanted, progress)
        self._head: EncoderHead
        if score is None:
            self._head = embedding_head(directory, self._modules, shape.hidden_size, self._device)
        else:
            self._head = ScoreHead(score, is_activated(directory, dict(reader.values)))

    @torch.inference_mode()
    def encode(self, batch: EncodeBatch) -> EncodeResult:
        self._check(batch)
        began_s = time.perf_counter()
        num_reused_tokens, cache_bytes = 0, 0
        if self._late is None:
            rows = self._rows(batch)
        else:
            rows, num_reused_tokens = self._late.rows(batch)
            cache_bytes = self._late.num_bytes
        return EncodeResult(
            number=batch.number,
            rows=rows,
            elapsed_s=time.perf_counter() - began_s,
            num_reused_tokens=num_reused_tokens,
            cache_bytes=cache_bytes,
        )

    def _rows(self, batch: EncodeBatch) -> F32:
        ends = np.cumsum(batch.lengths)[:-1]
        tokens, types = np.split(batch.tokens, ends), np.split(batch.types, ends)
        rows = np.empty((len(batch.lengths), self._head.dimensions), np.float32)
        for group, hidden_BLH, visible_BL in self._hidden(tokens, types):
            rows[group] = self._head(hidden_BLH, visible_BL).float().cpu().numpy()
        return rows

    def _token_vectors(self, sequences: Sequence[I32]) -> list[Tensor]:
        found: list[Tensor] = [torch.empty(0)] * len(sequences)
        types = [np.zeros_like(one) for one in sequences]
        for group, hidden_BLH, _ in self._hidden(sequences, types):
            for row, index in enumerate(group):
                found[index] = hidden_BLH[row, : len(sequences[index])].cpu()
        return found

    def _embedded(self, vectors_LH: Tensor) -> F32:
        visible_1L = torch.ones(1, len(vectors_LH), dtype=torch.bool, device=self._device)
        row: F32 = (
            self._head(vectors_LH[None].to(self._device), visible_1L)[0].float().cpu().numpy()
        )
        return row

    def _hidden(
        self, tokens: Sequence[I32], types: Sequence[I32]
    ) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
        """Groups of sequences: their indices, hidden states [B, L, H], and which are not padding
        [B, L]."""
        lengths = np.asarray([len(one) for one in tokens])
        if lengths.max() > self._shape.max_tokens:
            raise InvalidArgument(
                f"a sequence of {lengths.max()} tokens; the model reads {self._shape.max_tokens}: "
                "cut it before"
            )
        for group in _groups(lengths):
            tokens_BL, types_BL = self._padded(tokens, group), self._padded(types, group)
            visible_BL = _visible(lengths[group], tokens_BL.shape[1]).to(self._device)
            yield group, self._body(tokens_BL, types_BL, visible_BL), visible_BL

    def _padded(self, parts: Sequence[I32], group: np.ndarray) -> Tensor:
        chosen = [torch.from_numpy(parts[index].astype(np.int64)) for index in group]
        padded = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        return padded.to(self._device)

    def _check(self, batch: EncodeBatch) -> None:
        lengths, info = batch.lengths, self._info
        if len(batch.owners) not in (0, len(lengths)):
            raise InvalidArgument(
                f"{len(batch.owners)} owners of {len(lengths)} sequences: name one for each, or "
                "none"
            )
        total = int(lengths.sum())
        if not len(lengths) or total != len(batch.tokens) or total != len(batch.types):
            raise InvalidArgument(
                f"{len(lengths)} sequences of {total} tokens in all, but {len(batch.tokens)} "
                f"tokens and {len(batch.types)} types came: the lengths must add up to both"
            )
        if lengths.min() < 1 or lengths.max() > info.max_tokens:
            raise InvalidArgument(
                f"sequences of {lengths.min()} to {lengths.max()} tokens; the model reads 1 to "
                f"{info.max_tokens}: cut them before"
            )
        for flat, size, what in (
            (batch.tokens, info.vocab_size, "tokens"),
            (batch.types, info.num_types, "types of tokens"),
        ):
            if flat.min() < 0 or flat.max() >= size:
                raise InvalidArgument(
                    f"a batch names {what} {flat.min()} to {flat.max()}; the model has {size}, "
                    "from 0: was it made with another tokenizer?"
                )


def _groups(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Indices of sequences that run together, longest first."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        sums = np.cumsum(lengths[order[start:]])
        padded = longest * np.arange(1, len(sums) + 1)
        num_fitting = int(np.searchsorted(padded > _MAX_PADDING * sums, True))
        num_taken = max(1, num_fitting)
        yield order[start : start + num_taken]
        start += num_taken


def _visible(lengths: np.ndarray, longest: int) -> Tensor:
    return torch.from_numpy(np.arange(longest)[None, :] < lengths[:, None])


def rows_of(encoder: TorchEncoder, sequences: list[list[int]]) -> F32:
    """The rows of ``sequences``, all of type 0, for tests and notebooks."""
    tokens = np.concatenate([np.asarray(one, np.int32) for one in sequences])
    lengths = np.asarray([len(one) for one in sequences], np.int32)
    batch = EncodeBatch(number=0, tokens=tokens, types=np.zeros_like(tokens), lengths=lengths)
    return encoder.encode(batch).rows

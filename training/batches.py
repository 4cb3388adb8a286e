"""Makes one packed training step, of a fixed number of tokens, from documents.

Documents become rows of one length class (a multiple of 16) on a flat axis; see ``model.py``.
Loss counts fully on what the model writes; a random tenth of what it reads counts a little.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.attention import RowGroup
from training.corpus.document import BOS, PAD, Document
from training.corpus.mixture import draw

LENGTH_STEP = 16
READ_SHARE = 0.1
READ_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class Row:
    """The tokens of a document and the loss weight of predicting each of them."""

    tokens: list[int]
    weights: list[float]

    @property
    def length(self) -> int:
        """Return the length class: the inputs (all but the last token), rounded up."""
        return -(-(len(self.tokens) - 1) // LENGTH_STEP) * LENGTH_STEP


@dataclass(frozen=True, slots=True)
class Batch:
    """One step on a flat axis of N tokens."""

    tokens_N: Tensor
    targets_N: Tensor
    weights_N: Tensor
    positions_N: Tensor
    groups: tuple[RowGroup, ...]


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token that must exist."""
    index = tokenizer.token_to_id(token)
    if index is None:
        raise ValueError(f"the tokenizer has no token {token!r}: build it again")
    return index


def encode(tokenizer: Tokenizer, document: Document, rng: Random) -> Row:
    """Return the tokens and weights of one document; segments meet where pre-tokens end."""
    tokens, weights = [token_id(tokenizer, BOS)], [0.0]
    for segment in document.segments:
        ids = tokenizer.encode(segment.text).ids
        tokens += ids
        if segment.learned:
            weights += [1.0] * len(ids)
        else:
            weights += [READ_WEIGHT if rng.random() < READ_SHARE else 0.0 for _ in ids]
    return Row(tokens, weights)


def _fill(rows: Iterable[Row], num_tokens: int, max_length: int) -> list[Row]:
    """Take rows until the step is nearly full, passing over those that no longer fit."""
    chosen, room, misses = [], num_tokens, 0
    for row in rows:
        if row.length <= min(room, max_length):
            chosen.append(row)
            room -= row.length
        elif row.length <= max_length:
            misses += 1
        if misses > 12 or room < 2 * LENGTH_STEP:
            break
    return chosen


def pack(rows: list[Row], num_tokens: int, pad: int) -> Batch:
    """Lay rows out by length class; the room that is left becomes one row without weight."""
    rows = sorted(rows, key=lambda row: row.length)
    tokens, targets = list[int](), list[int]()
    weights, positions = list[float](), list[int]()
    lengths = [row.length for row in rows]
    for row in rows:
        filler = row.length - (len(row.tokens) - 1)
        tokens += row.tokens[:-1] + [pad] * filler
        targets += row.tokens[1:] + [pad] * filler
        weights += row.weights[1:] + [0.0] * filler
        positions += range(row.length)
    if room := num_tokens - len(tokens):
        tokens += [pad] * room
        targets += [pad] * room
        weights += [0.0] * room
        positions += range(room)
        lengths.append(room)
    groups = tuple(_groups(lengths))
    return Batch(
        torch.tensor(tokens),
        torch.tensor(targets),
        torch.tensor(weights),
        torch.tensor(positions),
        groups,
    )


def _groups(lengths: list[int]) -> Iterator[RowGroup]:
    start = 0
    for index in range(1, len(lengths) + 1):
        if index == len(lengths) or lengths[index] != lengths[start]:
            yield RowGroup(index - start, lengths[start])
            start = index


def batch_of_step(
    tokenizer: Tokenizer,
    seed: int,
    step: int,
    weights: Mapping[str, float],
    num_tokens: int,
    max_length: int,
) -> Batch:
    """Return the batch of one step; a pure function of its arguments. Documents of more than
    ``max_length`` tokens are left out."""
    rng = Random(f"weights/{seed}/{step}")
    documents = draw(seed, step, weights)
    rows = (encode(tokenizer, document, rng) for document in documents)
    return pack(_fill(rows, num_tokens, max_length), num_tokens, token_id(tokenizer, PAD))

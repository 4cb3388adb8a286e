"""Late interaction: how well each token of a query is matched by some token of a document.

Query and document are encoded apart, and the score of a pair is the mean over the query's tokens of
their highest cosine with a token of the document (MaxSim: Khattab and Zaharia, "ColBERT", 2020,
section 3.3, which takes the sum). Any embedding model scores pairs so. Shapes: Q tokens of a query,
D of a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from quire.core.batch import F32, I32
from quire.core.encoding import EncodeBatch, EncoderKind
from quire.core.errors import InvalidArgument, UnsupportedModel
from quire.engine.encoders.config import EncoderShape
from quire.engine.encoders.late_texts import PairToken
from quire.engine.encoders.modules import EncoderModule
from quire.engine.encoders.token_cache import OwnedText, TokenCache


def check_late(
    shape: EncoderShape, modules: list[EncoderModule], kind: EncoderKind, where: Path
) -> None:
    """Raise ``UnsupportedModel`` unless the model compares the tokens' hidden states."""
    kinds = {module.kind for module in modules}
    if kind == "cross_encoder":
        raise UnsupportedModel(
            f"{where} scores pairs itself: serve it without the prefix 'late-interaction:'"
        )
    if shape.body is None:
        raise UnsupportedModel(
            f"{where} is a decoder, whose tokens do not see the text behind them: late interaction "
            "is for models that read in both directions"
        )
    if "Dense" in kinds and "Pooling" not in kinds:
        raise UnsupportedModel(
            f"{where} projects the vector of each token, as ColBERT does: its projection, its "
            "markers of queries and documents and its filled-up queries are not served"
        )


class LateInteraction:
    """Rows of batches, from vectors of tokens that ``cache`` computes or has kept.

    A query followed by a document, distinguished by the types of their tokens, is a pair: its row
    begins with its score, from -1 to 1. A sequence of type 0 alone is a text, and its row is the
    result of ``embed`` for its vectors; ``embed`` None: there are only pairs. Rows have
    ``dimensions`` numbers.
    """

    def __init__(
        self, cache: TokenCache, embed: Callable[[Tensor], F32] | None, dimensions: int
    ) -> None:
        self._cache = cache
        self._embed = embed
        self._dimensions = dimensions

    @property
    def num_bytes(self) -> int:
        """The size of the vectors that are kept."""
        return self._cache.num_bytes

    def rows(self, batch: EncodeBatch) -> tuple[F32, int]:
        """Return a row for each sequence of ``batch`` [S, D], and how many tokens of its texts were
        kept and not computed. A text that is in several pairs is computed once.

        Raises:
            InvalidArgument: a sequence that is no pair, where there are only pairs.
        """
        items = [self._item(*one) for one in _sequences(batch)]
        found, num_reused = self._cache.vectors([text for one in items for text in one.texts])
        normal: dict[OwnedText, Tensor] = {}
        rows = np.zeros((len(items), self._dimensions), np.float32)
        for index, item in enumerate(items):
            if isinstance(item, _Pair):
                for text in item.texts:
                    if text not in normal:
                        normal[text] = functional.normalize(found[text].float(), dim=-1)
                rows[index, 0] = _score(item, normal)
            elif self._embed is not None:
                rows[index] = self._embed(found[item.text])
        return rows, num_reused

    def _item(self, owner: int | None, tokens: I32, types: I32) -> _Pair | _Text:
        if self._embed is not None and not types.any():
            return _Text(OwnedText(owner, tokens.tobytes()))
        num_query = _num_query_tokens(types)
        return _Pair(
            OwnedText(owner, tokens[:num_query].tobytes()),
            OwnedText(owner, tokens[num_query:].tobytes()),
            _compared(types[:num_query], PairToken.QUERY),
            _compared(types[num_query:], PairToken.DOCUMENT),
        )


@dataclass(frozen=True, slots=True)
class _Text:
    text: OwnedText

    @property
    def texts(self) -> tuple[OwnedText, ...]:
        return (self.text,)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A query and a document. ``query_tokens`` and ``document_tokens``: which tokens are
    compared."""

    query: OwnedText
    document: OwnedText
    query_tokens: Tensor
    document_tokens: Tensor

    @property
    def texts(self) -> tuple[OwnedText, ...]:
        return self.query, self.document


def _score(pair: _Pair, normal: Mapping[OwnedText, Tensor]) -> float:
    query_QH = normal[pair.query][pair.query_tokens]
    document_DH = normal[pair.document][pair.document_tokens]
    return (query_QH @ document_DH.T).amax(1).mean().item()


def _sequences(batch: EncodeBatch) -> Iterator[tuple[int | None, I32, I32]]:
    """Owner, tokens and types of each."""
    ends = np.cumsum(batch.lengths)[:-1]
    owners: list[int | None] = [None] * len(batch.lengths)
    if len(batch.owners):
        owners = batch.owners.tolist()
    yield from zip(owners, np.split(batch.tokens, ends), np.split(batch.types, ends), strict=True)


def _compared(types: I32, wanted: PairToken) -> Tensor:
    """The tokens that are compared, as bool; all of them if a text has only special tokens."""
    chosen = types == wanted
    return torch.from_numpy(chosen if chosen.any() else np.ones_like(chosen))


def _num_query_tokens(types: I32) -> int:
    is_document = types % 2 == PairToken.DOCUMENT
    num_query = int(np.argmax(is_document))
    if num_query == 0 or not is_document[num_query:].all():
        raise InvalidArgument(
            "a pair for late interaction is a query followed by a document, told apart by the "
            "types of their tokens: this sequence is not one"
        )
    return num_query

"""Late interaction: how well each token of a query is matched by some token of a document.

Query and document are encoded apart, and the score of a pair is the mean over the query's tokens of
their highest cosine with a token of the document (MaxSim: Khattab and Zaharia, "ColBERT", 2020,
section 3.3, which takes the sum). Any embedding model scores pairs so. Shapes: Q tokens of a query,
D of a document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

TokenVectors = Callable[[Sequence[I32]], list[Tensor]]
"""Sequences of tokens to a vector for each token [L, H], as the model says it."""


def check_late(
    shape: EncoderShape, modules: list[EncoderModule], kind: EncoderKind, where: Path
) -> None:
    """Raises ``UnsupportedModel`` unless the tokens' hidden states are what the model compares."""
    kinds = {module.kind for module in modules}
    if kind == "cross_encoder":
        raise UnsupportedModel(f"{where} scores pairs itself: serve it without late-interaction:")
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


def late_scores(batch: EncodeBatch, vectors_of: TokenVectors) -> F32:
    """A score from -1 to 1 for each pair of ``batch`` [S, 1]. A query that stands in several pairs
    is encoded once.

    Raises:
        InvalidArgument: a sequence is not a query followed by a document.
    """
    texts: dict[bytes, I32] = {}
    pairs: list[tuple[bytes, I32, bytes, I32]] = []
    ends = np.cumsum(batch.lengths)[:-1]
    for tokens, types in zip(
        np.split(batch.tokens, ends), np.split(batch.types, ends), strict=True
    ):
        num_query = _num_query_tokens(types)
        query, document = tokens[:num_query], tokens[num_query:]
        pairs.append((query.tobytes(), types[:num_query], document.tobytes(), types[num_query:]))
        texts[pairs[-1][0]], texts[pairs[-1][2]] = query, document
    found = dict(zip(texts, vectors_of(list(texts.values())), strict=True))
    normal = {key: functional.normalize(one_LH.float(), dim=-1) for key, one_LH in found.items()}
    scores = np.empty((len(pairs), 1), np.float32)
    for index, (query_key, query_types, document_key, document_types) in enumerate(pairs):
        query_QH = normal[query_key][_compared(query_types, PairToken.QUERY)]
        document_DH = normal[document_key][_compared(document_types, PairToken.DOCUMENT)]
        scores[index] = (query_QH @ document_DH.T).amax(1).mean().item()
    return scores


def _compared(types: I32, wanted: PairToken) -> Tensor:
    """Which tokens are compared; all, where a text has nothing but special tokens."""
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

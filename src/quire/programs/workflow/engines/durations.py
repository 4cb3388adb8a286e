"""The seconds that a primitive takes alone, by its engine's profile, which ``critical_path`` adds;
and the number of batches of an encoder's primitive.

An estimate: a graph has no texts, so the length of a prompt is guessed from its parts, and an
answer is taken to be as long as it may be.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.programs.api.encode import EncoderBatches
from quire.programs.workflow.engines.engine import NO_PROFILE, Profile
from quire.programs.workflow.graphs.primitives import PREFILLS, Op, Primitive
from quire.programs.workflow.graphs.values import Ref

CHARS_PER_TOKEN = 4
TOKENS_OF_A_PART = 128
"""The assumed length of a named part of a prompt: between that of an answer and that of a chunk."""
TOKENS_OF_AN_INPUT = 32
"""The assumed length of a part that comes with the query, such as a question."""


def seconds_alone(primitive: Primitive, profiles: Mapping[str, Profile]) -> float:
    """Estimate how long ``primitive`` takes alone; 0.0 if its engine has no profile."""
    profile = profiles.get(primitive.engine or "", NO_PROFILE)
    if primitive.op in PREFILLS:
        return profile.seconds(_prompt_tokens(primitive))
    if primitive.op in (Op.DECODING, Op.PARTIAL_DECODING):
        max_tokens: int = primitive.config["max_tokens"]
        is_part = primitive.op is Op.PARTIAL_DECODING
        return profile.token_s * max_tokens / (primitive.config["elements"] if is_part else 1)
    if primitive.op is Op.GENERATING:
        prompt_s = profile.seconds(_prompt_tokens(primitive))
        return prompt_s + profile.token_s * float(primitive.config["max_tokens"])
    return profile.seconds(1 if primitive.size is None else max(1, primitive.size))


def batches_alone(primitive: Primitive, profiles: Mapping[str, Profile]) -> EncoderBatches | None:
    """Return the batches of an encoder's primitive: none is larger than is efficient, and the last
    is short if it is smaller. None for other engines, and while the number of texts is not
    known."""
    if primitive.op not in (Op.EMBEDDING, Op.RERANKING):
        return None
    if primitive.batched and primitive.size is None:
        return None
    size = primitive.size or 1
    most = profiles.get(primitive.engine or "", NO_PROFILE).max_efficient_batch or size
    return EncoderBatches(-(-size // most), int(size % most > 0))


def _prompt_tokens(primitive: Primitive) -> int:
    literal = sum(len(part.text) for part in primitive.parts if part.name is None)
    named = [primitive.inputs[part.name] for part in primitive.parts if part.name is not None]
    return max(1, literal // CHARS_PER_TOKEN + sum(map(value_tokens, named)))


def value_tokens(ref: Ref) -> int:
    """Return the assumed length of a text whose length is not known yet."""
    return TOKENS_OF_AN_INPUT if ref.from_query else TOKENS_OF_A_PART

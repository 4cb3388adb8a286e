"""Draws long conversations: turns of several families after one another, up to 2000 tokens."""

from random import Random

from training.corpus import arithmetic, chat, copying, facts, lists
from training.corpus.document import SYSTEM, Document, Segment, Split
from training.corpus.words import made_up

_FAMILIES = (
    (arithmetic.sample, 3),
    (chat.sample, 3),
    (facts.sample, 3),
    (lists.sample, 2),
    (copying.sample, 1),
)


def sample(rng: Random, split: Split) -> Document:
    """Draw two to ten short documents as one conversation, without their system turns."""
    samplers = [sampler for sampler, _ in _FAMILIES]
    shares = [share for _, share in _FAMILIES]
    segments: list[Segment] = []
    for _ in range(rng.choice([2, 3, 3, 4, 6, 10])):
        part = rng.choices(samplers, shares)[0](rng, split)
        segments += _without_system(part.segments)
    return Document("sessions", "sessions", tuple(segments), made_up(rng, split))


def _without_system(segments: tuple[Segment, ...]) -> list[Segment]:
    first, *rest = segments
    if not first.text.startswith(SYSTEM):
        return list(segments)
    _, _, remainder = first.text.partition("<|end|>")
    return [Segment(remainder, first.learned), *rest]

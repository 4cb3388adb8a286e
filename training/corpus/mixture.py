"""Decides which families a training step draws from, and how often.

A step's documents are a pure function of the seed, the step and the weights, so that a run can be
resumed anywhere, with other weights if the held-out scores ask for it.
"""

from collections.abc import Callable, Iterator, Mapping
from random import Random

from training.corpus import (
    arithmetic,
    chat,
    codeact,
    components,
    copying,
    extraction,
    facts,
    functions,
    given_answers,
    lists,
    plain,
    react,
    reading,
    sessions,
    workflows,
)
from training.corpus.document import Document, Split

Sampler = Callable[[Random, Split], Document]

SAMPLERS: Mapping[str, Sampler] = {
    "arithmetic": arithmetic.sample,
    "products": arithmetic.sample_product,
    "react": react.sample,
    "codeact": codeact.sample,
    "facts": facts.sample,
    "long_facts": facts.sample_long,
    "unknown": facts.sample_unknown,
    "extraction": extraction.sample,
    "components": components.sample,
    "functions": functions.sample_known,
    "invented": functions.sample_unseen,
    "unneeded": functions.sample_unneeded,
    "lists": lists.sample,
    "chat": chat.sample,
    "copying": copying.sample,
    "plain": plain.sample,
    "sessions": sessions.sample,
    "leaves": reading.sample_leaf,
    "pages": reading.sample_pages,
    "verdicts": workflows.sample_judge,
    "refined": given_answers.sample_refine,
    "combined": given_answers.sample_combine,
    "workflows": workflows.sample,
}


def draw(seed: int, step: int, weights: Mapping[str, float]) -> Iterator[Document]:
    """Yield an endless stream of training documents that belongs to one step."""
    rng = Random(f"{seed}/{step}")
    families = list(weights)
    shares = [weights[family] for family in families]
    while True:
        yield SAMPLERS[rng.choices(families, shares)[0]](rng, Split.TRAIN)

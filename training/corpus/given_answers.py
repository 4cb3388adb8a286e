"""Draws what is made of answers that are given: refined by one more chunk, or combined."""

from collections.abc import Sequence
from random import Random

from training.corpus import facts, reading
from training.corpus.document import Document, Split, conversation
from training.corpus.facts import UNKNOWN, Fact
from training.corpus.lists import numbered
from training.corpus.reading import Exchange
from training.corpus.words import person

REFINE = "Refine the answer."
_COMBINED = ("one", "one", "same", "majority", "conflict", "conflict", "misread", "none")
_RECOGNISED = ("city", "color", "pet", "fruit", "job", "country", "language", "birthday", "time")
"""Attributes whose values no other attribute has."""


def sample_refine(rng: Random, split: Split) -> Document:
    """Draw an answer so far, and a context that has the real one, another one, or nothing of it.
    Training has answers so far as chunks before give them: of the attribute that is asked for."""
    is_training = split is Split.TRAIN
    size = reading.chunk_size(rng, split)
    page, shown, context = reading.shown_chunks(rng, split, 1, size)
    kinds, exchanges = list[str](), list[Exchange]()
    most, absent_share = reading.most_questions(rng, split, size), 0.6 if is_training else 0.55
    if is_training and rng.random() < 0.3:  # the first question is the one that is asked
        most = rng.choice([1, 2, 4])
    for fact in reading.questions_about(rng, split, page, shown, most, absent_share):
        name, attribute, value = fact
        if is_training:
            so_far = _so_far(rng, page.facts, fact)
        elif value != UNKNOWN:
            so_far = rng.choice([UNKNOWN, UNKNOWN, UNKNOWN, value, any_value(rng, split)])
        else:
            so_far = rng.choice([UNKNOWN, *[any_value(rng, split)] * 2])
        question = reading.question_about(rng, (name, attribute, ""))
        task, before_share = f"Answer so far: {so_far}\n{REFINE}", 0.85 if is_training else 0.65
        request = reading.instructed(
            rng, "" if exchanges else context, task, question, before_share
        )
        kinds.append("not found" if value == UNKNOWN else "found")
        exchanges.append((request, f"Answer: {so_far if value == UNKNOWN else value}"))
    return conversation("refine", kinds[0], exchanges)


def _so_far(rng: Random, known: Sequence[Fact], asked: Fact) -> str:
    """Return an answer so far for a question whose answer in the context is ``asked[2]``: unknown,
    the right one, or one of the same attribute: the page's for somebody else, one like it, or a
    fresh one. What the context does not have is kept, whatever it is."""
    _, attribute, value = asked
    is_found = value != UNKNOWN
    kind = rng.choices(("unknown", "right", "other"), (5, 2, 3) if is_found else (3, 0, 7))[0]
    if kind == "unknown":
        return UNKNOWN
    if kind == "right":
        return value
    others = [fact[2] for fact in known if fact[1] == attribute and fact[2] != value]
    choice = rng.random()
    if choice < 0.1 or (not others and attribute not in facts.ATTRIBUTES):
        return any_value(rng, Split.TRAIN)
    if others and (choice < 0.5 or attribute not in facts.ATTRIBUTES):
        return rng.choice(others)
    fresh = facts.ATTRIBUTES[attribute](rng, Split.TRAIN)
    if others and choice < 0.75:
        return facts.similar_value(rng, attribute, fresh, rng.choice(others))
    return fresh


def any_value(rng: Random, split: Split) -> str:
    """Return a value of any attribute."""
    return facts.ATTRIBUTES[rng.choice(list(facts.ATTRIBUTES))](rng, split)


def sample_combine(rng: Random, split: Split) -> Document:
    """Draw the answers of a tree's leaves, in the order in which the search ranked their texts:
    mostly unknown, now and then several values. The most frequent value counts, of equally frequent
    ones the first that can be a value of the attribute."""
    exchanges = list[Exchange]()
    for _ in range(1 if split is Split.HELD_OUT else 4):
        name, attribute = person(rng, split), rng.choice(list(facts.ATTRIBUTES))
        draw = facts.ATTRIBUTES[attribute]
        value, count = draw(rng, split), rng.choice([2, 3, 3, 3, 4, 5])
        parts, answer = [UNKNOWN] * count, value
        kind = rng.choice(_COMBINED)
        if kind == "none":
            answer = UNKNOWN
        elif kind == "one":
            parts[rng.randrange(count)] = value
        elif kind == "same":
            for place in rng.sample(range(count), rng.randint(2, count)):
                parts[place] = value
        elif kind == "majority":
            places = rng.sample(range(count), min(3, count))
            for place in places:
                parts[place] = value
            if len(places) > 2:
                parts[places[0]] = _other_value(rng, split, attribute)
        else:
            places = sorted(rng.sample(range(count), rng.choice([2, 2, min(3, count)])))
            if kind == "misread" and attribute in _RECOGNISED:
                misread = rng.choice([one for one in _RECOGNISED if one != attribute])
                parts[places.pop(0)] = facts.ATTRIBUTES[misread](rng, split)
            parts[places[0]] = value
            for place in places[1:]:
                parts[place] = _other_value(rng, split, attribute)
                if parts.count(parts[place]) > 1:
                    parts[place] = UNKNOWN
        question = reading.question_about(rng, (name, attribute, ""))
        answers = f"Combine these answers:\n{numbered(parts)}"
        request = rng.choice(
            [f"Question: {question}\n{answers}", f"{answers}\nQuestion: {question}"]
        )
        exchanges.append((request, f"Answer: {answer}"))
    return conversation("combine", "combine", exchanges)


def _other_value(rng: Random, split: Split, attribute: str) -> str:
    """Return a value that a leaf may read by mistake: mostly of the same attribute."""
    return facts.ATTRIBUTES[attribute](rng, split) if rng.random() < 0.75 else any_value(rng, split)

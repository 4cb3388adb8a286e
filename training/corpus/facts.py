"""Draws extractive questions: find one value among facts about people, places and things."""

from collections.abc import Callable
from random import Random

from training.corpus.document import Document, Split, conversation, in_split
from training.corpus.words import (
    ANIMALS,
    CITIES,
    COLORS,
    COUNTRIES,
    FRUITS,
    JOBS,
    LANGUAGES,
    MONTHS,
    clock_time,
    made_up,
    people,
    person,
    similar_name,
)

Fact = tuple[str, str, str]

SYSTEM_TEXTS = (
    "",
    "",
    "",
    "Answer from the context.",
    "Use the context to answer the question.",
    "Answer the question with the value from the context.",
)
ATTRIBUTES: dict[str, Callable[[Random, Split], str]] = {
    "code": lambda rng, _: f"{rng.randint(0, 9999):04d}",
    "age": lambda rng, _: str(rng.randint(1, 99)),
    "city": lambda rng, _: rng.choice(CITIES),
    "color": lambda rng, _: rng.choice(COLORS),
    "pet": lambda rng, _: rng.choice(ANIMALS),
    "fruit": lambda rng, _: rng.choice(FRUITS),
    "room": lambda rng, _: str(rng.randint(100, 999)),
    "boss": lambda rng, split: person(rng, split),
    "friend": lambda rng, split: person(rng, split),
    "password": lambda rng, split: made_up(rng, split),
    "phone": lambda rng, _: f"{rng.randint(100, 999)}-{rng.randint(0, 9999):04d}",
    "price": lambda rng, _: str(rng.randint(1, 99999)),
    "time": lambda rng, _: clock_time(rng),
    "street": lambda rng, split: f"{made_up(rng, split).capitalize()} {rng.randint(1, 99)}",
    "team": lambda rng, split: made_up(rng, split).capitalize(),
    "job": lambda rng, _: rng.choice(JOBS),
    "country": lambda rng, _: rng.choice(list(COUNTRIES)),
    "language": lambda rng, _: rng.choice(LANGUAGES).capitalize(),
    "birthday": lambda rng, _: f"{rng.choice(MONTHS)} {rng.randint(1, 28)}",
}
_SPELLED = ("boss", "friend", "password", "team", "street")
_DIGITS = ("code", "room", "phone", "price")
_FACT_FORMS = ("The {a} of {n} is {v}.", "{n}'s {a} is {v}.", "{n} has {a} {v}.", "{n}: {a} {v}.")
_OTHER_SENTENCES = (
    "It was a warm day.",
    "The garden is green.",
    "Nobody knows the reason.",
    "This text has several parts.",
    "The meeting starts at noon.",
    "They live in the same town.",
    "Some of them are friends.",
    "Please keep this list.",
)
UNKNOWN = "unknown"
_QUESTION_FORMS = ("What is the {a} of {n}?", "What is {n}'s {a}?")


def draw_facts(
    rng: Random,
    split: Split,
    count: int,
    *,
    num_attributes: int | None = None,
    made_up_share: float = 0.6,
    similar_share: float = 0.0,
) -> list[Fact]:
    """Draw facts ``(name, attribute, value)``; names and attributes recur, pairs of them do not.
    The shares are those of ``people``."""
    num_names = max(1, (count + 1) // 2 + rng.randint(0, count // 2))
    names = people(rng, split, num_names, made_up_share, similar_share)
    if num_attributes is None:
        num_attributes = rng.randint(1, 4) if count < 12 else rng.randint(4, 8)
    known = list(ATTRIBUTES)
    if rng.random() < 0.25:  # attributes named by words the model does not know
        known = [made_up(rng, split) for _ in range(4)]
    attributes = rng.sample(known, min(num_attributes, len(known)))
    pairs = [(n, a) for n in names for a in attributes]
    rng.shuffle(pairs)
    covered = {n: (n, a) for n, a in pairs}  # every name has one fact first
    chosen = list(dict.fromkeys([*covered.values(), *pairs]))[:count]
    rng.shuffle(chosen)
    unknown = ATTRIBUTES[rng.choice(list(ATTRIBUTES))]
    return [(n, a, ATTRIBUTES.get(a, unknown)(rng, split)) for n, a in chosen]


def similar_value(rng: Random, attribute: str, value: str, other: str) -> str:
    """Return a training value of ``attribute`` that begins as ``other`` does and ends mostly as
    ``value``; ``value`` itself where all values are words of a list."""
    if attribute in _SPELLED:
        first, _, rest = value.partition(" ")
        begun = other.partition(" ")[0]
        word = similar_name(rng, Split.TRAIN, begun)
        return f"{word if first[0].isupper() else word.lower()} {rest}".strip()
    if attribute in _DIGITS:
        kept = rng.randint(1, max(1, len(other) - 1))
        return other[:kept] + value[kept:]
    return value


def write_context(rng: Random, facts: list[Fact]) -> str:
    """Return the facts as sentences, sometimes numbered or with other sentences between them."""
    mixed, form = rng.random() < 0.5, rng.choice(_FACT_FORMS)
    forms = [rng.choice(_FACT_FORMS) if mixed else form for _ in facts]
    lines = [f.format(n=n, a=a, v=v) for f, (n, a, v) in zip(forms, facts, strict=True)]
    style = rng.random()
    if style < 0.1:
        lines = [f"[{index}] {line}" for index, line in enumerate(lines, 1)]
    elif style < 0.2:
        for _ in range(rng.randint(1, 4)):
            lines.insert(rng.randint(0, len(lines)), rng.choice(_OTHER_SENTENCES))
    return rng.choice([" ", " ", "\n"]).join(lines)


def _exchanges(rng: Random, facts: list[Fact], most: int) -> list[tuple[str, str]]:
    context, later = write_context(rng, facts), rng.choice(["Question: ", ""])
    asked_facts = rng.sample(facts, min(most, len(facts)))
    exchanges = []
    for index, (n, a, v) in enumerate(asked_facts):
        question = rng.choice(_QUESTION_FORMS).format(n=n, a=a)
        lead = f"Context: {context}\nQuestion: " if index == 0 else later
        exchanges.append((lead + question, f"Answer: {v}"))
    return exchanges


def sample(rng: Random, split: Split) -> Document:
    """Draw one to eight facts; up to eight questions in training, one in the held-out split."""
    while True:
        facts = draw_facts(rng, split, rng.randint(1, 8))
        if in_split(facts, split):
            break
    exchanges = _exchanges(rng, facts, 1 if split is Split.HELD_OUT else 8)
    return conversation("facts", f"{len(facts)} facts", exchanges, rng.choice(SYSTEM_TEXTS))


def sample_long(rng: Random, split: Split) -> Document:
    """Draw up to 110 facts (about 1900 tokens) with questions spread over them."""
    facts = draw_facts(rng, split, rng.choice([12, 16, 24, 40, 70, 110]))
    exchanges = _exchanges(rng, facts, 1 if split is Split.HELD_OUT else 10)
    return conversation("long_facts", f"{len(facts)} facts", exchanges, rng.choice(SYSTEM_TEXTS))


def sample_unknown(rng: Random, split: Split) -> Document:
    """Draw questions of which some have no answer in the context."""
    facts = draw_facts(rng, split, rng.randint(3, 9))
    missing = rng.sample(facts, rng.randint(1, max(1, len(facts) // 2)))
    shown = [fact for fact in facts if fact not in missing]
    absent = {fact: (*fact[:2], UNKNOWN) for fact in missing}
    context, exchanges = write_context(rng, shown), list[tuple[str, str]]()
    for n, a, v in (absent.get(fact, fact) for fact in rng.sample(facts, min(6, len(facts)))):
        question = rng.choice(_QUESTION_FORMS).format(n=n, a=a)
        lead = "" if exchanges else f"Context: {context}\n"
        exchanges.append((f"{lead}Question: {question}", f"Answer: {v}"))
    kind = "absent" if exchanges[0][1].endswith(UNKNOWN) else "present"
    return conversation("unknown", kind, exchanges, rng.choice(SYSTEM_TEXTS))

"""Facts in, JSON out: replies that a program parses, with or without a grammar to hold them."""

import json
from random import Random

from training.corpus.document import Document, Split, conversation, in_split
from training.corpus.facts import ATTRIBUTES
from training.corpus.words import person

SYSTEM_TEXTS = ("", "", "Reply with JSON only.", "You extract data as JSON.")
_FORMS = (
    "Extract {keys} as JSON: {text}",
    "Extract {keys} as JSON.\n{text}",
    "Return JSON with {keys}: {text}",
    "{text}\nReturn {keys} as JSON.",
    "Give {keys} as JSON for this text: {text}",
)
_SENTENCES = ("The {a} of {n} is {v}.", "{n}'s {a} is {v}.", "{n} has {a} {v}.")


def _typed(value: str) -> str | int:
    """Numbers become JSON numbers unless a leading zero says that they are codes."""
    return int(value) if value.isdigit() and str(int(value)) == value else value


def _listing(keys: list[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"


def sample(rng: Random, split: Split) -> Document:
    """Draw one person with one to four attributes, of which some are asked for."""
    while True:
        name = person(rng, split)
        attributes = rng.sample(list(ATTRIBUTES), rng.randint(1, 4))
        values = {a: ATTRIBUTES[a](rng, split) for a in attributes}
        if in_split((name, values), split):
            break
    form = rng.choice(_SENTENCES)
    text = " ".join(form.format(a=a, n=name, v=v) for a, v in values.items())
    record: dict[str, str | int] = {"name": name}
    record |= {attribute: _typed(value) for attribute, value in values.items()}
    keys = rng.sample(list(record), rng.randint(1, len(record)))
    question = rng.choice(_FORMS).format(keys=_listing(keys), text=text)
    reply = json.dumps({key: record[key] for key in keys})
    return conversation(
        "extraction", f"{len(keys)} keys", [(question, reply)], rng.choice(SYSTEM_TEXTS)
    )

"""Draws the copying curriculum: repeat, look up and recall random strings.

Induction is what question answering and function calls stand on, and random strings teach it with
more signal per token than either.
"""

from random import Random

from training.corpus.document import Document, Split, conversation
from training.corpus.words import (
    ANIMALS,
    CITIES,
    COLORS,
    FIRST_NAMES,
    FRUITS,
    ITEMS,
    made_up,
    number_of_digits,
)

_PLAIN_WORDS = (*ANIMALS, *CITIES, *COLORS, *FIRST_NAMES, *FRUITS, *ITEMS)


def _piece(rng: Random, split: Split) -> str:
    choice = rng.random()
    if choice < 0.45:
        word = made_up(rng, split)
        return word.capitalize() if rng.random() < 0.4 else word
    if choice < 0.7:
        return str(number_of_digits(rng, 5))
    if choice < 0.8:
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
        return "".join(rng.choice(letters) for _ in range(rng.randint(2, 6)))
    return rng.choice(_PLAIN_WORDS)


def repetition(rng: Random, split: Split) -> tuple[str, str]:
    """Draw a question that wants some words again, and these words."""
    text = " ".join(_piece(rng, split) for _ in range(rng.randint(1, 8)))
    forms = ("Repeat: {t}", "Say {t}", 'Repeat "{t}"', "Copy this: {t}", "Echo {t}", "Write: {t}")
    return rng.choice(forms).format(t=text), text


def _recall(rng: Random, split: Split) -> list[tuple[str, str]]:
    """Pairs in one message, then the value asked for by key, many times."""
    pairs = {_piece(rng, split): _piece(rng, split) for _ in range(rng.randint(2, 12))}
    link, gap = rng.choice([(": ", "\n"), (" is ", ". "), ("=", " "), (" -> ", "\n"), (": ", ", ")])
    listing = gap.join(f"{key}{link}{value}" for key, value in pairs.items())
    keys = list(pairs)
    rng.shuffle(keys)
    first, *rest = keys[:8]
    exchanges = [(f"{listing}\n{first}?", pairs[first])]
    return exchanges + [(f"{key}?", pairs[key]) for key in rest]


def _quote(rng: Random, split: Split) -> tuple[str, str]:
    """Words move from prose into quotes, which spell the space before a word differently."""
    words = [_piece(rng, split) for _ in range(rng.randint(1, 6))]
    quoted = ", ".join(f'"{word}"' for word in words)
    return f"Quote: {' '.join(words)}", f"[{quoted}]"


def sample(rng: Random, split: Split) -> Document:
    """Draw one copying document."""
    choice = rng.random()
    if choice < 0.6:
        return conversation("copying", "recall", _recall(rng, split))
    if choice < 0.8:
        return conversation("copying", "repeat", [repetition(rng, split) for _ in range(2)])
    return conversation("copying", "quote", [_quote(rng, split) for _ in range(2)])

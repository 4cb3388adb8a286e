"""Draws a little text without chat marks, so that a bare prompt continues in a sensible way."""

from random import Random

from training.corpus.document import Document, Segment, Split
from training.corpus.words import ANIMALS, CITIES, COLORS, FRUITS, ROOMS, person

_SENTENCES = (
    "Hello, my name is {n} and I live in {city}.",
    "Hello, I am {n}. How are you?",
    "{n} has a {color} {animal}.",
    "The {animal} sleeps in the {room}.",
    "{n} went to {city} and bought a {fruit}.",
    "The capital of France is Paris.",
    "Quire serves programs, not prompts.",
    "A page is a unit of KV cache that a program holds.",
    "The sky is blue and the sun is warm.",
    "Once upon a time there was a {animal} that lived in {city}.",
    "It was a {color} {animal}, and its name was {n}.",
    "{n} likes the {color} {fruit}.",
    "One day {n} saw a {animal} in the {room}.",
    "The {animal} and the {other} were good friends.",
    "In the end they were happy.",
    "The quick brown fox jumps over the lazy dog.",
)


def sample(rng: Random, split: Split) -> Document:
    """Draw a few sentences in a row."""
    sentences = [
        rng.choice(_SENTENCES).format(
            n=person(rng, split, made_up_share=0.2),
            city=rng.choice(CITIES),
            color=rng.choice(COLORS),
            animal=rng.choice(ANIMALS),
            other=rng.choice(ANIMALS),
            fruit=rng.choice(FRUITS),
            room=rng.choice(ROOMS),
        )
        for _ in range(rng.randint(1, 8))
    ]
    text = " ".join(sentences)
    return Document("plain", "plain", (Segment(text + "<|end|>", learned=True),), text)

"""Draws the little that the model knows without a context: questions and answers."""

from random import Random

from training.corpus.words import COUNTRIES, DAYS, MONTHS

OPPOSITES = (
    "big small|hot cold|up down|day night|open closed|fast slow|old new|good bad|long short|"
    "happy sad|left right|light dark|wet dry|hard soft|high low|full empty|early late|rich poor"
)


def question(rng: Random) -> tuple[str, str]:
    """Draw a capital, an opposite, a day or month, or a sum of two digits."""
    choice = rng.random()
    if choice < 0.35:
        country, city = rng.choice(list(COUNTRIES.items()))
        return f"What is the capital of {country}?", city
    if choice < 0.6:
        pair = rng.choice(OPPOSITES.split("|")).split()
        rng.shuffle(pair)
        return f"What is the opposite of {pair[0]}?", pair[1]
    if choice < 0.8:
        circle = rng.choice([DAYS, MONTHS])
        index = rng.randrange(len(circle))
        step, word = rng.choice([(1, "after"), (-1, "before")])
        return f"What comes {word} {circle[index]}?", circle[(index + step) % len(circle)]
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    return f"What is {a} + {b}?", str(a + b)

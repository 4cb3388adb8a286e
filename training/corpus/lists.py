"""Replies of several lines, and small choices that a program can split or vote on."""

from collections import Counter
from random import Random

from training.corpus.document import Document, Split, conversation
from training.corpus.words import (
    ANIMALS,
    CITIES,
    COLORS,
    DAYS,
    FIRST_NAMES,
    FRUITS,
    MONTHS,
    VEGETABLES,
    made_up,
)

CATEGORIES: dict[str, list[str]] = {
    "animals": ANIMALS,
    "colors": COLORS,
    "cities": CITIES,
    "fruits": FRUITS,
    "vegetables": VEGETABLES,
    "names": FIRST_NAMES,
    "days": DAYS,
    "months": MONTHS,
}
SYSTEM_TEXTS = ("", "", "", "You are a helpful assistant.", "Be short.")
STEPS: dict[str, tuple[str, ...]] = {
    "make tea": ("Boil the water.", "Put the tea in a cup.", "Pour the water.", "Wait and drink."),
    "plant a tree": ("Dig a hole.", "Put the tree in.", "Fill the hole.", "Give it water."),
    "write a letter": ("Take some paper.", "Write the text.", "Sign it.", "Send it."),
    "bake a cake": ("Mix the flour and eggs.", "Add sugar.", "Bake it.", "Let it cool."),
    "wash a car": ("Wet the car.", "Use soap.", "Rinse it.", "Dry it."),
    "plan a trip": ("Choose a city.", "Book the tickets.", "Pack a bag.", "Leave on time."),
    "solve a problem": ("Read the question.", "Make a plan.", "Try it.", "Check the answer."),
    "learn a language": ("Learn some words.", "Read a little.", "Speak every day.", "Do not stop."),
}
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten".split()
_LIST_FORMS = (
    "List {n} {c}, one per line.",
    "List {n} {c}.",
    "Name {n} {c}.",
    "Give me {n} {c}.",
    "Write {n} {c}, one per line.",
    "Tell me {n} {c}.",
    "Can you list {n} {c}?",
    "Give a list of {n} {c}.",
)
_STEP_FORMS = (
    "List the steps to {s}, one per line.",
    "List the steps to {s}.",
    "How do I {s}?",
    "What are the steps to {s}?",
    "Make a plan to {s}.",
)


def numbered(lines: list[str]) -> str:
    """Return ``1. first`` and so on, one a line."""
    return "\n".join(f"{index}. {line}" for index, line in enumerate(lines, 1))


def _listing(rng: Random) -> tuple[str, str]:
    category, words = rng.choice(list(CATEGORIES.items()))
    count = rng.randint(1, min(10, len(words)))
    spoken = str(count) if rng.random() < 0.7 else _NUMBER_WORDS[count]
    # One fixed order with a free start: greedy replies stay free of repetitions, samples vary.
    start = 0 if category in ("days", "months") else rng.randrange(len(words))
    chosen = [words[(start + index) % len(words)] for index in range(count)]
    return rng.choice(_LIST_FORMS).format(n=spoken, c=category), numbered(chosen)


def _steps(rng: Random) -> tuple[str, str]:
    goal, steps = rng.choice(list(STEPS.items()))
    return rng.choice(_STEP_FORMS).format(s=goal), numbered(list(steps))


def _sorting(rng: Random) -> tuple[str, str]:
    count = rng.randint(2, 6)
    numbers = rng.sample(range(rng.choice([10, 100])), count)
    shown = ", ".join(map(str, numbers))
    question = rng.choice(["Sort these numbers: {x}", "Sort {x}.", "Put in order: {x}"])
    return question.format(x=shown), f"Answer: {', '.join(map(str, sorted(numbers)))}"


def _extreme(rng: Random) -> tuple[str, str]:
    numbers = rng.sample(range(rng.choice([10, 100, 1000])), rng.randint(2, 5))
    shown = ", ".join(map(str, numbers))
    if rng.random() < 0.5:
        return f"Which is the largest: {shown}?", f"Answer: {max(numbers)}"
    return f"Which is the smallest: {shown}?", f"Answer: {min(numbers)}"


def _vote(rng: Random, split: Split) -> tuple[str, str]:
    options = [str(rng.randint(0, 999)) for _ in range(2)]
    if rng.random() < 0.4:
        options = [made_up(rng, split) for _ in range(2)]
    votes = [options[0]] * rng.randint(2, 4) + [options[1]]
    rng.shuffle(votes)
    winner = Counter(votes).most_common(1)[0][0]
    form = rng.choice(["Which answer is most common: {x}?", "Pick the most common of {x}."])
    return form.format(x=", ".join(votes)), f"Answer: {winner}"


def _best(rng: Random, split: Split) -> tuple[str, str]:
    scores = rng.sample(range(1, 11), rng.randint(2, 4))
    names = [made_up(rng, split) for _ in scores]
    shown = "\n".join(f"{n}: {s}" for n, s in zip(names, scores, strict=True))
    best = names[scores.index(max(scores))]
    return f"Pick the best of these:\n{shown}", f"Answer: {best}"


def sample(rng: Random, split: Split) -> Document:
    """Draw one list, plan, ordering or choice."""
    kinds = ("list", "steps", "sort", "extreme", "vote", "best")
    kind = rng.choices(kinds, [8, 2, 2, 2, 2, 2])[0]
    match kind:
        case "list":
            exchange = _listing(rng)
        case "steps":
            exchange = _steps(rng)
        case "sort":
            exchange = _sorting(rng)
        case "extreme":
            exchange = _extreme(rng)
        case "vote":
            exchange = _vote(rng, split)
        case _:
            exchange = _best(rng, split)
    return conversation("lists", kind, [exchange], rng.choice(SYSTEM_TEXTS))

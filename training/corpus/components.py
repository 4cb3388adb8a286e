"""Draws what the language-model components of a workflow ask for.

Query expansion, judging whether a context answers a question, combining partial answers, checking a
sum, merging sorted lists, outlines and summaries: short prompts with replies that code can split.
"""

from collections.abc import Callable
from random import Random

from training.corpus import arithmetic, facts
from training.corpus.document import Document, Split, conversation, in_split
from training.corpus.lists import numbered
from training.corpus.words import ANIMALS, CITIES, FRUITS, ITEMS, made_up, people, person

Exchange = tuple[str, str]

_EXPANSIONS = (
    "What is the {a} of {n}?",
    "What is {n}'s {a}?",
    "{a} of {n}",
    "{n} {a}",
    "Tell me the {a} of {n}.",
)
_TOPICS: dict[str, tuple[str, ...]] = {
    "cats": ("Cats are small animals.", "Cats sleep a lot.", "Cats like to watch a mouse."),
    "dogs": ("Dogs are good friends.", "Dogs need a walk every day.", "Dogs can learn words."),
    "tea": ("Tea is a warm drink.", "Tea is made with hot water.", "Tea can be green or black."),
    "music": ("Music is made of sounds.", "Many people sing.", "Music can make you happy."),
    "rain": ("Rain is water.", "Rain comes from the sky.", "Plants need rain."),
    "books": ("Books have pages.", "Books tell stories.", "You can read books at night."),
    "Quire": (
        "Quire serves programs, not prompts.",
        "A page is a unit of KV cache that a program holds.",
        "A program is a session, an inferlet or a workflow.",
    ),
    "trees": ("Trees are tall plants.", "Trees have green leaves.", "Birds live in trees."),
}


def _question(rng: Random, split: Split) -> tuple[str, str]:
    attributes = list(facts.ATTRIBUTES)
    return person(rng, split), rng.choice(attributes)


def _expand(rng: Random, split: Split) -> Exchange:
    name, attribute = _question(rng, split)
    forms = [form.format(a=attribute, n=name) for form in _EXPANSIONS]
    count = rng.randint(2, 4)
    request = rng.choice(
        [
            f"Write {count} search queries for: {forms[0]}",
            f"Expand the question into {count} queries, one per line: {forms[0]}",
            f"Rewrite the question in {count} ways, one per line: {forms[0]}",
            f"Give {count} search queries for the question: {forms[0]}",
        ]
    )
    return request, numbered(forms[1 : count + 1])


def _judge(rng: Random, split: Split) -> Exchange:
    """Does the context hold what the question asks for?"""
    drawn = facts.draw_facts(rng, split, rng.randint(2, 6))
    (name, attribute, _), *rest = drawn
    enough = rng.random() < 0.5
    context = facts.write_context(rng, drawn if enough else rest)
    question = f"What is the {attribute} of {name}?"
    request = rng.choice(
        [
            f"Context: {context}\nQuestion: {question}\nCan the context answer the question?",
            f"Context: {context}\nQuestion: {question}\nIs the context enough? Answer yes or no.",
        ]
    )
    return request, f"Answer: {'yes' if enough else 'no'}"


def _combine(rng: Random, split: Split) -> Exchange:
    """Draw partial answers, of which one is not ``unknown``."""
    name, attribute = _question(rng, split)
    value = facts.ATTRIBUTES[attribute](rng, split)
    parts = ["unknown"] * rng.randint(1, 3) + [value]
    rng.shuffle(parts)
    lead = rng.choice(["Combine these answers", "Answers", "Combine the partial answers"])
    return (
        f"{lead}:\n{numbered(parts)}\nQuestion: What is the {attribute} of {name}?",
        f"Answer: {value}",
    )


def _refine(rng: Random, split: Split) -> Exchange:
    """Draw an answer so far, and a context that may hold the real one."""
    (name, attribute, value), *rest = facts.draw_facts(rng, split, rng.randint(2, 5))
    found = rng.random() < 0.6
    shown = [(name, attribute, value), *rest] if found else rest
    rng.shuffle(shown)
    so_far = "unknown" if found else value
    question = f"What is the {attribute} of {name}?"
    context = facts.write_context(rng, shown)
    return (
        f"Context: {context}\nAnswer so far: {so_far}\nRefine the answer.\nQuestion: {question}",
        f"Answer: {value}",
    )


def _check(rng: Random, split: Split) -> Exchange:
    """Draw a claimed sum or difference, worked out before the verdict."""
    while True:
        a, b = rng.randint(0, 999), rng.randint(0, 999)
        operator = rng.choice("+-")
        if in_split((a, operator, b), split):
            break
    true = a + b if operator == "+" else a - b
    claimed = true if rng.random() < 0.5 else true + rng.choice([-10, -2, -1, 1, 2, 10, 100])
    question = rng.choice(
        [
            f"Is {a} {operator} {b} = {claimed}?",
            f"Is it true that {a} {operator} {b} = {claimed}?",
            f"Check: {a} {operator} {b} = {claimed}",
        ]
    )
    steps = arithmetic.worked_answer(a, operator, b).replace("Answer: ", "")
    return question, f"{steps}\nAnswer: {'yes' if claimed == true else 'no'}"


def _merge(rng: Random, split: Split) -> Exchange:
    numbers = rng.sample(range(100), rng.randint(4, 8))
    cut = rng.randint(1, len(numbers) - 1)
    left, right = sorted(numbers[:cut]), sorted(numbers[cut:])
    first, second = (", ".join(map(str, part)) for part in (left, right))
    question = rng.choice(["Merge the sorted lists {x} and {y}.", "Merge {x} and {y}."])
    merged = ", ".join(map(str, sorted(numbers)))
    return question.format(x=first, y=second), f"Answer: {merged}"


def _outline(rng: Random, split: Split) -> Exchange:
    topic, points = rng.choice(list(_TOPICS.items()))
    count = rng.randint(1, len(points))
    forms = ("Write {n} points about {t}.", "List {n} facts about {t}.", "{n} points about {t}")
    return rng.choice(forms).format(n=count, t=topic), numbered(list(points[:count]))


def _summary(rng: Random, split: Split) -> Exchange:
    """Draw a text whose summary is its first sentence."""
    sentences = [
        f"{name} {rng.choice(['lives in', 'went to', 'works in', 'comes from'])} "
        f"{rng.choice(CITIES)} and has {rng.randint(2, 99)} {rng.choice([*ITEMS, *FRUITS])}."
        for name in people(rng, split, rng.randint(2, 4))
    ]
    form = rng.choice(["Summarize: {t}", "Summarize in one sentence: {t}", "Summarize.\n{t}"])
    return form.format(t=" ".join(sentences)), sentences[0]


def routed(rng: Random, split: Split) -> Exchange:
    """Draw a request, and which of three workers should take it."""
    name, attribute = _question(rng, split)
    a, b = rng.randint(2, 9999), rng.randint(2, 9999)
    return rng.choice(
        [
            (f"What is {a} + {b}?", "math"),
            (f"What is {a} minus {b}?", "math"),
            (f"How much is {a} times {b}?", "math"),
            (f"What is the {attribute} of {name}?", "search"),
            (f"Find the {attribute} of {name}.", "search"),
            (rng.choice(["Hello", "How are you?", "Thank you!", "Who are you?"]), "chat"),
            (f"Tell me about the {rng.choice(ANIMALS)} {made_up(rng, split)}.", "search"),
        ]
    )


def _route(rng: Random, split: Split) -> Exchange:
    request, label = routed(rng, split)
    form = rng.choice(["Classify as math, search or chat: {r}", "math, search or chat? {r}"])
    return form.format(r=request), f"Answer: {label}"


_BUILDERS: dict[str, tuple[Callable[[Random, Split], Exchange], float]] = {
    "expand": (_expand, 1.0),
    "judge": (_judge, 2.0),
    "combine": (_combine, 1.0),
    "refine": (_refine, 1.5),
    "check": (_check, 1.0),
    "merge": (_merge, 1.0),
    "outline": (_outline, 0.6),
    "summary": (_summary, 1.0),
    "route": (_route, 0.6),
}


def sample(rng: Random, split: Split) -> Document:
    """Draw one request of a workflow component."""
    kinds = list(_BUILDERS)
    kind = rng.choices(kinds, [share for _, share in _BUILDERS.values()])[0]
    exchange = _BUILDERS[kind][0](rng, split)
    return conversation("components", kind, [exchange], rng.choice(["", "", "Be short."]))

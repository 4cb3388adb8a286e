"""Draws what the applications of ``quire.programs.workflow`` ask a model, in their exact texts.

Answers from chunks with the question before or behind the context, refined and combined answers,
verdicts, situated chunks, queries as JSON, plans of calls, and what a model knows without a search.
"""

import json
from collections.abc import Callable, Sequence
from random import Random

from training.corpus import chat_knowledge, components, facts, pages
from training.corpus.chat_intents import UNKNOWN_REPLY
from training.corpus.document import (
    USER,
    Document,
    Segment,
    Split,
    asked,
    conversation,
    said,
    turn,
)
from training.corpus.facts import UNKNOWN, Fact
from training.corpus.lists import numbered
from training.corpus.pages import Chunk, Page
from training.corpus.words import people, person

Exchange = tuple[str, str]
JUDGE = "Can the context answer the question?"
REFINE = "Refine the answer."
SITUATE = "Situate the chunk in the document."
FROM_KNOWLEDGE = "Answer from what you know."
CLASSIFY = "Classify as math, search or chat"
NEEDS_SEARCH = "Is a search needed? Answer yes or no."
_FORMS = ("What is the {a} of {n}?", "What is the {a} of {n}?", "What is {n}'s {a}?")
_SEPARATORS = (" ", " ", "\n")
_COMBINED = ("one", "one", "same", "majority", "conflict", "conflict", "misread", "none")
_RECOGNISED = ("city", "color", "pet", "fruit", "job", "country", "language", "birthday", "time")
"""Attributes whose values no other attribute has."""


def _question(rng: Random, fact: Fact) -> str:
    return rng.choice(_FORMS).format(n=fact[0], a=fact[1])


def _ordered(rng: Random, split: Split, context: str, question: str) -> str:
    """Return the question before the context and again behind it, as the applications write it;
    behind it alone, or now and then before it alone, which is far harder to learn. Training has
    mostly the form of the applications."""
    shares = (16, 3, 1) if split is Split.TRAIN else (12, 7, 1)
    order = rng.choices(("both", "behind", "before"), shares)[0]
    before = "" if order == "behind" else f"Question: {question}\n"
    behind = "" if order == "before" else f"\nQuestion: {question}"
    return f"{before}Context: {context}{behind}"


def _instructed(rng: Random, context: str, task: str, question: str) -> str:
    """Return a context, what is to be done with it, and the question last, before the answer: a
    small model reads it far better there than before the task. Without a context: one more task."""
    asked_last = f"{task}\nQuestion: {question}"
    if not context:
        return asked_last
    before = f"Question: {question}\n" if rng.random() < 0.65 else ""
    return f"{before}Context: {context}\n{asked_last}"


def _shown(
    rng: Random, split: Split, num_chunks: int, size: int, named_share: float = 0.9
) -> tuple[Page, list[Chunk], str]:
    """Some chunks of a page, in any order, and their text."""
    named = rng.random() < named_share
    layout = rng.choice(pages.LAYOUTS)
    num_facts = max(3, round(size * num_chunks / rng.uniform(8, 20)))
    page = pages.draw_page(rng, split, num_facts + rng.randint(0, num_facts), named=named)
    cut = pages.chunks(page, layout, size, min(30, size // 4), with_headings=rng.random() < 0.7)
    chosen = rng.sample(cut, min(num_chunks, len(cut)))
    written = [chunk.text if named else _situated(chunk) for chunk in chosen]
    return page, chosen, rng.choice(_SEPARATORS).join(written)


def _situated(chunk: Chunk) -> str:
    return f"{_situation(chunk)}\n{chunk.text}"


def _situation(chunk: Chunk) -> str:
    names = list(chunk.subjects)
    if not names:
        return UNKNOWN
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"It is about {listed}."


def _size(rng: Random, split: Split) -> int:
    """Words of a chunk: short ones teach most for each token that is read, long ones are asked."""
    sizes = [24, 40, 64] if split is Split.TRAIN else [24, 40]
    return rng.choice([*sizes, 100, 160, 256, 256, 256])


def _num_questions(rng: Random, split: Split, size: int) -> int:
    """More questions about long chunks, which cost most tokens to read."""
    if split is Split.HELD_OUT:
        return 1
    if size < 100:
        return rng.choice([3, 6, 8])
    return rng.choice([8, 12, 16] if size < 400 else [16, 20, 24, 28])


def _facts_of(shown: Sequence[Chunk]) -> list[Fact]:
    return list(dict.fromkeys(fact for chunk in shown for fact in chunk.facts))


def _questions(
    rng: Random, split: Split, page: Page, shown: list[Chunk], count: int, absent_share: float
) -> list[Fact]:
    """Draw what is asked about the chunks, with its answer."""
    present = _facts_of(shown)
    absent = pages.absent_questions(rng, split, page, shown)
    rng.shuffle(present)
    chosen = list[Fact]()
    while len(chosen) < count and (present or absent):
        is_absent = rng.random() < absent_share if present and absent else bool(absent)
        if is_absent:
            chosen.append((*absent.pop()[:2], UNKNOWN))
        else:
            chosen.append(present.pop())
    return chosen


def _read(rng: Random, split: Split, num_chunks: int, size: int, absent_share: float) -> Document:
    """Draw questions about chunks; the first carries them."""
    page, shown, context = _shown(rng, split, num_chunks, size)
    most = _num_questions(rng, split, size * num_chunks)
    exchanges = list[Exchange]()
    for fact in _questions(rng, split, page, shown, most, absent_share):
        text = _question(rng, fact)
        lead = f"Question: {text}" if exchanges else _ordered(rng, split, context, text)
        exchanges.append((lead, f"Answer: {fact[2]}"))
    kind = "absent" if exchanges[0][1].endswith(f" {UNKNOWN}") else "present"
    return conversation("leaf" if num_chunks == 1 else "pages", kind, exchanges)


def sample_leaf(rng: Random, split: Split) -> Document:
    """Draw one chunk of up to 256 words, which says it or not: mostly not in training, as two of a
    tree's three leaves have no answer."""
    return _read(rng, split, 1, _size(rng, split), 0.6 if split is Split.TRAIN else 0.5)


def sample_pages(rng: Random, split: Split) -> Document:
    """Draw three chunks as the search found them, mostly of the size of the applications; now and
    then four short ones. Few questions have no answer, because a model that does not find a value
    in so much text says that there is none."""
    short = [48, 80, 128] if split is Split.HELD_OUT else [64, 128]
    size = rng.choice([*short, 256, 256, 256, 256])
    absent_share = 0.12 if split is Split.TRAIN else 0.2
    return _read(rng, split, 3 if size > 128 else rng.choice([3, 4]), size, absent_share)


def sample_judge(rng: Random, split: Split) -> Document:
    """Draw contexts and questions, and whether the context says what is asked for; yes and no alike
    often."""
    size = _size(rng, split)
    page, shown, context = _shown(rng, split, 1, size)
    most = _num_questions(rng, split, size)
    exchanges = list[Exchange]()
    for fact in _questions(rng, split, page, shown, most, 0.5):
        text = _question(rng, fact)
        verdict = "no" if fact[2] == UNKNOWN else "yes"
        request = _instructed(rng, "" if exchanges else context, JUDGE, text)
        exchanges.append((request, f"Answer: {verdict}"))
    return conversation("judge", exchanges[0][1].removeprefix("Answer: "), exchanges)


def sample_refine(rng: Random, split: Split) -> Document:
    """Draw an answer so far, and a context that has the real one, another one, or nothing of it."""
    size = _size(rng, split)
    page, shown, context = _shown(rng, split, 1, size)
    kinds, exchanges = list[str](), list[Exchange]()
    most = _num_questions(rng, split, size)
    for name, attribute, value in _questions(rng, split, page, shown, most, 0.55):
        if value != UNKNOWN:
            kind, answer = "found", value
            so_far = rng.choice([UNKNOWN, UNKNOWN, UNKNOWN, value, _value(rng, split)])
        else:
            kind, so_far = "not found", rng.choice([UNKNOWN, *[_value(rng, split)] * 2])
            answer = so_far
        question = _question(rng, (name, attribute, ""))
        task = f"Answer so far: {so_far}\n{REFINE}"
        request = _instructed(rng, "" if exchanges else context, task, question)
        kinds.append(kind)
        exchanges.append((request, f"Answer: {answer}"))
    return conversation("refine", kinds[0], exchanges)


def _value(rng: Random, split: Split) -> str:
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
        question = _question(rng, (name, attribute, ""))
        answers = f"Combine these answers:\n{numbered(parts)}"
        request = rng.choice(
            [f"Question: {question}\n{answers}", f"{answers}\nQuestion: {question}"]
        )
        exchanges.append((request, f"Answer: {answer}"))
    return conversation("combine", "combine", exchanges)


def _other_value(rng: Random, split: Split, attribute: str) -> str:
    """Return a value that a leaf may read by mistake: mostly of the same attribute."""
    return facts.ATTRIBUTES[attribute](rng, split) if rng.random() < 0.75 else _value(rng, split)


def sample_situate(rng: Random, split: Split) -> Document:
    """Draw a chunk and the chunks around it, and whom it tells about."""
    named = rng.random() < 0.5
    page = pages.draw_page(rng, split, rng.randint(4, 40), named=named)
    size = rng.choice([16, 24, 32, 32, 48, 64, 64, 96, 128, 256])
    cut = pages.surrounded(page, rng.choice(pages.LAYOUTS), size, max(2, size // 8), 4)
    _, document = rng.choice(cut)
    chosen = [chunk for chunk, around in cut if around == document]
    rng.shuffle(chosen)
    exchanges = list[Exchange]()
    for chunk in chosen[: 1 if split is Split.HELD_OUT else 4]:
        before = "" if exchanges else f"Document: {document}\n"
        request = f"{before}Chunk: {chunk.text}\n{SITUATE}"
        exchanges.append((request, f"Answer: {_situation(chunk)}"))
    return conversation("situate", "named" if named else "inherited", exchanges)


def _held_by_schema(task: str, request: str, elements: list[str]) -> Document:
    """Return a reply whose first bracket is the grammar's choice."""
    reply = json.dumps(elements, ensure_ascii=False)
    segments = (asked(turn(USER, request)), Segment("[", learned=False), said(reply[1:]))
    return Document(task, task, segments, reply)


def sample_queries(rng: Random, split: Split) -> Document:
    """Draw search queries as a JSON array, which a schema holds."""
    name, attribute = person(rng, split), rng.choice(list(facts.ATTRIBUTES))
    forms = ("What is {n}'s {a}?", "{a} of {n}", "{n} {a}", "Tell me the {a} of {n}.")
    queries = [form.format(n=name, a=attribute) for form in forms]
    if (asked_text := _question(rng, (name, attribute, ""))) == queries[0]:
        queries[0] = f"What is the {attribute} of {name}?"
    count = rng.choice([2, 3, 3, 3, 4])
    request = f"Write {count} search queries for: {asked_text}"
    return _held_by_schema("queries", request, queries[:count])


def sample_plan(rng: Random, split: Split) -> Document:
    """Draw independent calls for one request, as a JSON array."""
    parts, calls, used = list[str](), list[str](), set[str]()
    for name in people(rng, split, rng.choice([1, 2, 2, 3])):
        part, call = _call(rng, split, name)
        parts.append(part)
        calls.append(call)
        used.add(call.partition("(")[0])
    offered = ["calc(expression)", "lookup(name, key)", "search(query)"]
    offered = [tool for tool in offered if tool.partition("(")[0] in used or rng.random() < 0.7]
    rng.shuffle(offered)
    request = f"Tools: {', '.join(offered)}.\nPlan the calls for: {_joined(parts, '?')}"
    return _held_by_schema("plan", request, calls)


def _call(rng: Random, split: Split, name: str) -> Exchange:
    attribute = rng.choice(list(facts.ATTRIBUTES))
    if (choice := rng.random()) < 0.5:
        return f"what is the {attribute} of {name}", f"lookup({name}, {attribute})"
    if choice < 0.8:
        sum_text = f"{rng.randint(2, 999)} {rng.choice('+-*')} {rng.randint(2, 99)}"
        return f"what is {sum_text}", f"calc({sum_text})"
    return f"find texts about {name}", f"search({name})"


def _joined(parts: list[str], end: str) -> str:
    text = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return text[0].upper() + text[1:] + end


def sample_results(rng: Random, split: Split) -> Document:
    """Draw the results of a plan's calls, put together in the order of the request."""
    parts, results = list[str](), list[str]()
    for name in people(rng, split, rng.choice([1, 2, 2, 3])):
        attribute = rng.choice(list(facts.ATTRIBUTES))
        if rng.random() < 0.6:
            parts.append(f"what is the {attribute} of {name}")
            results.append(facts.ATTRIBUTES[attribute](rng, split))
        else:
            parts.append(f"what is {rng.randint(2, 999)} {rng.choice('+-*')} {rng.randint(2, 99)}")
            results.append(str(rng.randint(0, 9999)))
    answer = results[0] if len(results) == 1 else f"{', '.join(results[:-1])} and {results[-1]}"
    request = f"Question: {_joined(parts, '?')}\nResults:\n{numbered(results)}"
    return conversation("results", f"{len(results)} results", [(request, f"Answer: {answer}")])


def sample_proxy(rng: Random, split: Split) -> Document:
    """Draw questions that are answered without a search, and some whose answer is not known."""
    exchanges = list[Exchange]()
    for _ in range(1 if split is Split.HELD_OUT else 3):
        question, answer = _known_or_not(rng, split)
        exchanges.append((f"Question: {question}\n{FROM_KNOWLEDGE}", f"Answer: {answer}"))
    kind = UNKNOWN if exchanges[0][1].endswith(f" {UNKNOWN}") else "known"
    return conversation("proxy", kind, exchanges)


def _known_or_not(rng: Random, split: Split) -> Exchange:
    if rng.random() < 0.5:
        return chat_knowledge.question(rng)
    return _question(rng, (person(rng, split), rng.choice(list(facts.ATTRIBUTES)), "")), UNKNOWN


def sample_search(rng: Random, split: Split) -> Document:
    """Draw an answer from knowledge, and whether a search is needed after it."""
    exchanges = list[Exchange]()
    for _ in range(1 if split is Split.HELD_OUT else 3):
        question, answer = _known_or_not(rng, split)
        needed = answer == UNKNOWN
        if needed and rng.random() < 0.3:
            answer = _value(rng, split)
        elif not needed and rng.random() < 0.1:
            needed, answer = True, UNKNOWN
        request = f"Question: {question}\nAnswer: {answer}\n{NEEDS_SEARCH}"
        exchanges.append((request, f"Answer: {'yes' if needed else 'no'}"))
    return conversation("search", exchanges[0][1].removeprefix("Answer: "), exchanges)


def sample_kind(rng: Random, split: Split) -> Document:
    """Draw an answer from knowledge and a request, and of which kind the request is."""
    exchanges = list[Exchange]()
    for _ in range(1 if split is Split.HELD_OUT else 3):
        request, label = components.routed(rng, split)
        draft = rng.choice([UNKNOWN, UNKNOWN_REPLY, _value(rng, split), ""])
        exchanges.append((f"Answer so far: {draft}\n{CLASSIFY}: {request}", f"Answer: {label}"))
    return conversation("kind", exchanges[0][1].removeprefix("Answer: "), exchanges)


def sample_searched(rng: Random, split: Split) -> Document:
    """Draw an answer from knowledge, the texts that a search found (none if none was needed), and
    the question: what they say counts, then the answer so far."""
    if rng.random() < 0.25:
        question, value = chat_knowledge.question(rng)
        context, so_far, answer, kind = "", value, value, "not searched"
    else:
        page, shown, context = _shown(rng, split, rng.choice([1, 1, 4]), 24)
        ((name, attribute, answer),) = _questions(rng, split, page, shown, 1, 0.2)
        question = _question(rng, (name, attribute, ""))
        so_far = rng.choice([UNKNOWN, UNKNOWN_REPLY])
        kind = "unknown" if answer == UNKNOWN else "found"
    request = f"Answer so far: {so_far}\nContext: {context}\nQuestion: {question}"
    return conversation("searched", kind, [(request, f"Answer: {answer}")])


SHARES: dict[str, tuple[Callable[[Random, Split], Document], float]] = {
    "judge": (sample_judge, 2.0),
    "refine": (sample_refine, 3.0),
    "combine": (sample_combine, 2.0),
    "situate": (sample_situate, 2.0),
    "queries": (sample_queries, 1.5),
    "plan": (sample_plan, 1.5),
    "results": (sample_results, 0.7),
    "proxy": (sample_proxy, 0.8),
    "search": (sample_search, 0.8),
    "kind": (sample_kind, 0.8),
    "searched": (sample_searched, 1.5),
}


def sample(rng: Random, split: Split) -> Document:
    """Draw one request of an application, except for reading chunks."""
    kinds = list(SHARES)
    kind = rng.choices(kinds, [share for _, share in SHARES.values()])[0]
    return SHARES[kind][0](rng, split)

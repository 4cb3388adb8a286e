"""Draws what the applications of ``quire.programs.workflow`` ask a model, in their exact texts.

Verdicts, situated chunks, queries as JSON, plans of calls, and what a model knows without a search,
beside what ``reading`` and ``given_answers`` draw.
"""

import json
from collections.abc import Callable
from random import Random

from training.corpus import chat_knowledge, components, facts, given_answers, pages, reading
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
from training.corpus.facts import UNKNOWN
from training.corpus.lists import numbered
from training.corpus.reading import Exchange
from training.corpus.words import people, person

JUDGE = "Can the context answer the question?"
SITUATE = "Situate the chunk in the document."
FROM_KNOWLEDGE = "Answer from what you know."
CLASSIFY = "Classify as math, search or chat"
NEEDS_SEARCH = "Is a search needed? Answer yes or no."


def sample_judge(rng: Random, split: Split) -> Document:
    """Draw contexts and questions, and whether the context says what is asked for; yes and no alike
    often."""
    size = reading.chunk_size(rng, split)
    page, shown, context = reading.shown_chunks(rng, split, 1, size)
    most = reading.most_questions(rng, split, size)
    exchanges = list[Exchange]()
    for fact in reading.questions_about(rng, split, page, shown, most, 0.5):
        text = reading.question_about(rng, fact)
        verdict = "no" if fact[2] == UNKNOWN else "yes"
        request = reading.instructed(rng, "" if exchanges else context, JUDGE, text)
        exchanges.append((request, f"Answer: {verdict}"))
    return conversation("judge", exchanges[0][1].removeprefix("Answer: "), exchanges)


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
        exchanges.append((request, f"Answer: {reading.situation(chunk)}"))
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
    if (asked_text := reading.question_about(rng, (name, attribute, ""))) == queries[0]:
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
    return reading.question_about(
        rng, (person(rng, split), rng.choice(list(facts.ATTRIBUTES)), "")
    ), UNKNOWN


def sample_search(rng: Random, split: Split) -> Document:
    """Draw an answer from knowledge, and whether a search is needed after it."""
    exchanges = list[Exchange]()
    for _ in range(1 if split is Split.HELD_OUT else 3):
        question, answer = _known_or_not(rng, split)
        needed = answer == UNKNOWN
        if needed and rng.random() < 0.3:
            answer = given_answers.any_value(rng, split)
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
        draft = rng.choice([UNKNOWN, UNKNOWN_REPLY, given_answers.any_value(rng, split), ""])
        exchanges.append((f"Answer so far: {draft}\n{CLASSIFY}: {request}", f"Answer: {label}"))
    return conversation("kind", exchanges[0][1].removeprefix("Answer: "), exchanges)


def sample_searched(rng: Random, split: Split) -> Document:
    """Draw an answer from knowledge, the texts that a search found (none if none was needed), and
    the question: what they say counts, then the answer so far."""
    if rng.random() < 0.25:
        question, value = chat_knowledge.question(rng)
        context, so_far, answer, kind = "", value, value, "not searched"
    else:
        page, shown, context = reading.shown_chunks(rng, split, rng.choice([1, 1, 4]), 24)
        ((name, attribute, answer),) = reading.questions_about(rng, split, page, shown, 1, 0.2)
        question = reading.question_about(rng, (name, attribute, ""))
        so_far = rng.choice([UNKNOWN, UNKNOWN_REPLY])
        kind = "unknown" if answer == UNKNOWN else "found"
    request = f"Answer so far: {so_far}\nContext: {context}\nQuestion: {question}"
    return conversation("searched", kind, [(request, f"Answer: {answer}")])


SHARES: dict[str, tuple[Callable[[Random, Split], Document], float]] = {
    "judge": (sample_judge, 2.0),
    "refine": (given_answers.sample_refine, 3.0),
    "combine": (given_answers.sample_combine, 2.0),
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

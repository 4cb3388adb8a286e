"""Defines the held-out tasks: how their prompts are drawn and how a reply is judged."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from training.corpus import (
    arithmetic,
    chat,
    codeact,
    facts,
    functions,
    given_answers,
    lists,
    react,
    reading,
    workflows,
)
from training.corpus.calculator import CalculationError, calculate, run_program
from training.corpus.document import BOS, CALL_CLOSE, CALL_OPEN, Document, Split
from training.decoding import Decoder

Judge = Callable[[Decoder, list[Document]], list[bool]]


@dataclass(frozen=True, slots=True)
class Task:
    """One row of the report; ``bar`` is the share that the lower Wilson bound has to reach."""

    name: str
    sample: Callable[[Random, Split], Document]
    judge: Judge
    bar: float | None = None
    kind: str | None = None

    def documents(self, count: int, seed: int) -> list[Document]:
        """Return different held-out documents, the same for the same seed."""
        rng, chosen = Random(f"{self.name}/{seed}"), dict[str, Document]()
        while len(chosen) < count:
            document = self.sample(rng, Split.HELD_OUT)
            if self.kind in (None, document.kind):
                chosen[document.prompt] = document
        return list(chosen.values())


def final_answer(text: str) -> str | None:
    """Return what stands after the last ``Answer:``."""
    _, mark, tail = text.rpartition("Answer:")
    return tail.strip() if mark else None


def judge_answer(decoder: Decoder, documents: list[Document]) -> list[bool]:
    """Return for each document whether the text after ``Answer:`` equals that of the reference."""
    replies = decoder.complete([d.prompt for d in documents], max_tokens=120)
    return [
        final_answer(reply) == final_answer(document.answer)
        for reply, document in zip(replies, documents, strict=True)
    ]


def judge_text(decoder: Decoder, documents: list[Document]) -> list[bool]:
    """Return for each document whether the whole reply equals the reference."""
    replies = decoder.complete([d.prompt for d in documents], max_tokens=120)
    return [r.strip() == d.answer for r, d in zip(replies, documents, strict=True)]


def judge_array(decoder: Decoder, documents: list[Document]) -> list[bool]:
    """Return for each document whether the array behind a bracket that a schema sets equals the
    reference."""
    replies = decoder.complete([d.prompt for d in documents], max_tokens=120)
    return [f"[{r.strip()}" == d.answer for r, d in zip(replies, documents, strict=True)]


def judge_call(decoder: Decoder, documents: list[Document]) -> list[bool]:
    """Return for each document whether the reply is one call of the right function with the right
    arguments, in any order."""
    replies = decoder.complete([d.prompt for d in documents], max_tokens=120)
    return [
        parse_call(reply) == parse_call(document.answer)
        for reply, document in zip(replies, documents, strict=True)
    ]


def parse_call(text: str) -> object:
    """Return the JSON of a single call; None for anything else, such as a key given twice."""
    body = text.strip()
    if not (body.startswith(CALL_OPEN) and body.endswith(CALL_CLOSE)):
        return None
    try:
        return json.loads(
            body[len(CALL_OPEN) : -len(CALL_CLOSE)], object_pairs_hook=_without_repetition
        )
    except ValueError:
        return None


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError(f"a key is given twice: {[key for key, _ in pairs]}")
    return dict(pairs)


def judge_list(decoder: Decoder, documents: list[Document]) -> list[bool]:
    """Return for each document whether the reply has as many numbered lines as the reference, all
    different, all of the right category."""
    replies = decoder.complete([d.prompt for d in documents], max_tokens=120)
    return [_same_list(r, d.answer) for r, d in zip(replies, documents, strict=True)]


def _same_list(reply: str, reference: str) -> bool:
    if reply.strip() == reference:
        return True
    lines, expected = reply.strip().split("\n"), reference.split("\n")
    words = [line.partition(". ")[2] for line in lines]
    sample = expected[0].partition(". ")[2]
    numbered = lines == lists.numbered(words).split("\n") and len(lines) == len(expected)
    categories = [set(c) for c in lists.CATEGORIES.values() if sample in c]
    fits = any(set(words) <= category for category in categories)
    return numbered and fits and len(set(words)) == len(words)


def judge_reports(decoder: Decoder, documents: list[Document]) -> list[bool]:
    """Return for each document whether the sentence after a tool's result equals the reference."""
    prompts = [BOS + "".join(s.text for s in d.segments[:-1]) for d in documents]
    replies = decoder.complete(prompts, max_tokens=60)
    wanted = [d.segments[-1].text.removesuffix("<|end|>") for d in documents]
    return [r.strip() == w for r, w in zip(replies, wanted, strict=True)]


def judge_react(decoder: Decoder, documents: list[Document]) -> list[bool]:
    """Run the loop: the model acts, real tools answer, until an answer or eight actions."""
    return _closed_loop(decoder, documents, react.OBSERVATION, _observe)


def judge_codeact(decoder: Decoder, documents: list[Document]) -> list[bool]:
    """Run the line of Python that the model wrote and feed back what it prints."""
    return _closed_loop(decoder, documents, codeact.RESULT, lambda text, _: _execute(text))


def _closed_loop(
    decoder: Decoder,
    documents: list[Document],
    stop: str,
    respond: Callable[[str, Mapping[tuple[str, str], str]], str],
) -> list[bool]:
    texts = [document.prompt for document in documents]
    running = list(range(len(documents)))
    for _ in range(8):
        replies = decoder.complete([texts[i] for i in running], max_tokens=100, stop=stop)
        waiting = []
        for index, reply in zip(running, replies, strict=True):
            texts[index] += reply
            if reply.endswith(stop):
                texts[index] += f" {respond(reply, documents[index].records)}\n"
                waiting.append(index)
        running = waiting
        if not running:
            break
    return [
        final_answer(text) == document.answer
        for text, document in zip(texts, documents, strict=True)
    ]


def _observe(text: str, records: Mapping[tuple[str, str], str]) -> str:
    """Return the observation for the last action in the text."""
    action = text.rpartition("Action: ")[2].partition("\n")[0]
    name, _, arguments = action.removesuffix(")").partition("(")
    if name == "lookup":
        person, _, key = arguments.partition(", ")
        return records.get((person, key), "not found")
    try:
        return calculate(arguments)
    except CalculationError as exc:
        return f"error: {exc}"


def _execute(text: str) -> str:
    program = text.partition("```python\n")[2].partition("\n```")[0]
    try:
        return run_program(program)
    except CalculationError as exc:
        return f"error: {exc}"


def _with_report(rng: Random, split: Split) -> Document:
    """Return a held-out call that goes on with its result and a sentence."""
    while True:
        sampler = rng.choice([functions.sample_known, functions.sample_unseen])
        document = sampler(rng, split)
        if len(document.segments) > 2:
            return document


TASKS = (
    Task("addition", arithmetic.sample, judge_answer, 0.97, "addition"),
    Task("subtraction", arithmetic.sample, judge_answer, 0.97, "subtraction"),
    Task("react", react.sample, judge_react, 0.97),
    Task("codeact", codeact.sample, judge_codeact, 0.90),
    Task("functions, known", functions.sample_known, judge_call, 0.95),
    Task("functions, unseen", functions.sample_unseen, judge_call, 0.80),
    Task("functions, unneeded", functions.sample_unneeded, judge_text),
    Task("tool results", _with_report, judge_reports),
    Task("facts", facts.sample, judge_answer, 0.90),
    Task("long facts", facts.sample_long, judge_answer),
    Task("lists", lists.sample, judge_list),
    Task("chat", chat.sample, judge_text),
    Task("chunk, answer", reading.sample_leaf, judge_answer, 0.90, "present"),
    Task("chunk, unknown", reading.sample_leaf, judge_answer, 0.90, "absent"),
    Task("three chunks", reading.sample_pages, judge_answer, None, "present"),
    Task("judge yes", workflows.sample_judge, judge_answer, 0.90, "yes"),
    Task("judge no", workflows.sample_judge, judge_answer, 0.90, "no"),
    Task("refine, found", given_answers.sample_refine, judge_answer, 0.90, "found"),
    Task("refine, not found", given_answers.sample_refine, judge_answer, 0.90, "not found"),
    Task("combine", given_answers.sample_combine, judge_answer, 0.90),
    Task("situate, named", workflows.sample_situate, judge_answer, None, "named"),
    Task("situate, inherited", workflows.sample_situate, judge_answer, None, "inherited"),
    Task("queries", workflows.sample_queries, judge_array, 0.90),
    Task("plan of calls", workflows.sample_plan, judge_array, 0.90),
    Task("results of calls", workflows.sample_results, judge_answer, 0.90),
    Task("answer or unknown", workflows.sample_proxy, judge_answer, 0.90),
    Task("kind of request", workflows.sample_kind, judge_answer, 0.90),
    Task("found or known", workflows.sample_searched, judge_answer, 0.90),
    Task("search needed", workflows.sample_search, judge_answer, 0.90),
)

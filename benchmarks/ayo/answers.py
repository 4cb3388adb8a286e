"""Measures how often applications answer right: held-out facts in HTML, PDF and Markdown.

Each query brings one file of about 50 facts, which the node reads, cuts, embeds and searches with
the defaults of the application; the answer must equal the fact's value. The bound that counts is
the lower one of the 95 % Wilson interval. A fifth as many questions have no answer in their file:
``unknown`` is right. Naive RAG is asked, with ``--ranked`` the applications that rank what they
find; a ranker is then among ``--encoder``.

    python benchmarks/ayo/answers.py --encoder ~/models/minilm --num 40
    python benchmarks/ayo/answers.py --encoder ~/models/minilm \\
        --encoder rank=late-interaction:~/models/minilm --ranked --num 40
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.ayo.written import WRITERS
from benchmarks.options import plain_parser
from benchmarks.report import emit, print_table
from quire.cli.configuration import DEFAULT_TENANT, encoder_configs, engine_configs
from quire.core.config import NodeConfig
from quire.core.errors import ProgramFailed
from quire.node import Node
from quire.programs.inferlet import Inferlet
from quire.programs.workflow import find_application, workflow
from training.corpus.document import Split
from training.corpus.facts import ATTRIBUTES, UNKNOWN, Fact
from training.corpus.pages import Page, draw_page
from training.evaluate import wilson_lower_bound

FACTS_OF_A_PAGE, QUESTIONS_OF_A_PAGE = 48, 12
OTHER_SHARE = 1.0
"""Sentences of a page that state no fact, for each that does."""
BAR = 0.9
CASES = (
    ("naive-rag", "one_shot"),
    ("naive-rag", "refine"),
    ("naive-rag", "tree"),
    ("advanced-rag", "refine"),
    ("advanced-rag", "one_shot"),
    ("contextual-retrieval", "one_shot"),
)
"""Application and its way of synthesis."""


@dataclass(frozen=True, slots=True)
class Asked:
    """``answer``: the value, or ``unknown``; ``kind``: the end of the file's name."""

    question: str
    answer: str
    kind: str
    content: bytes

    @property
    def query(self) -> dict[str, Any]:
        name = f"page.{self.kind}"
        if self.kind == "md":
            document = {"name": name, "text": self.content.decode()}
        else:
            document = {"name": name, "base64": base64.b64encode(self.content).decode()}
        return {"question": self.question, "documents": [document]}


def questions(num: int, seed: int, *, absent: bool) -> Iterator[Asked]:
    """Draw questions, the same for the same arguments; names and made-up words occur in no training
    document."""
    rng = Random(f"answers/{seed}/{absent}")
    kinds = list(WRITERS)
    made = 0
    while made < num:
        page = _page(rng)
        if absent:
            said = {fact[:2] for fact in page.facts}
            chosen = _crossed(page.facts, said)
        else:
            chosen = page.facts
        for name, attribute, value in rng.sample(chosen, min(QUESTIONS_OF_A_PAGE, len(chosen))):
            if made < num:
                kind = kinds[made % len(kinds)]
                question = f"What is the {attribute} of {name}?"
                yield Asked(question, value, kind, WRITERS[kind](page))
                made += 1


def _page(rng: Random) -> Page:
    """A page whose attributes are words; made-up ones are two or three times as many tokens, and
    three chunks of them are more than the shipped model's context."""
    while True:
        page = draw_page(rng, Split.HELD_OUT, FACTS_OF_A_PAGE, other_share=OTHER_SHARE)
        if all(attribute in ATTRIBUTES for _, attribute, _ in page.facts):
            return page


def _crossed(facts: list[Fact], said: set[tuple[str, str]]) -> list[Fact]:
    """Names of the page with attributes that it gives of others only."""
    attributes = dict.fromkeys(fact[1] for fact in facts)
    return [(f[0], a, UNKNOWN) for f in facts for a in attributes if (f[0], a) not in said]


async def ask(node: Node, program: Inferlet, asked: Asked, mode: str) -> str:
    """Return the answer, or the error that came in its place."""
    config = {"answer": {"synthesis": mode}}
    handle = node.launch(
        program, (json.dumps(asked.query), json.dumps(config)), tenant=DEFAULT_TENANT
    )
    try:
        result = await handle.result()
    except ProgramFailed as exc:
        return f"error: {exc}"
    answer: str = result["answer"]
    return answer.strip()


async def measure(node: Node, name: str, mode: str, arguments: Namespace) -> dict[str, object]:
    """Return one row: how the questions of one application were answered, some at once."""
    program = workflow(find_application(name))
    num_absent = max(1, arguments.num // 5)
    asked = [*questions(arguments.num, arguments.seed, absent=False)]
    asked += questions(num_absent, arguments.seed, absent=True)
    turns, started, done = asyncio.Semaphore(arguments.at_once), time.monotonic(), 0

    async def one(item: Asked) -> str:
        nonlocal done
        async with turns:
            answer = await ask(node, program, item, mode)
        done += 1
        print(f"\r{name} {mode}: {done}/{len(asked)}", end="", flush=True)
        return answer

    answers = await asyncio.gather(*map(one, asked))
    print()
    right = [given == item.answer for given, item in zip(answers, asked, strict=True)]
    if arguments.wrong:
        for given, item, good in zip(answers, asked, right, strict=True):
            if not good:
                print(f"  {item.kind} {item.question} {item.answer!r}, not {given!r}")
    present, unknown = right[: arguments.num], right[arguments.num :]
    by_kind = {
        kind: _share(
            [good for good, item in zip(present, asked, strict=False) if item.kind == kind]
        )
        for kind in WRITERS
    }
    bound = wilson_lower_bound(sum(present), len(present))
    return {
        "application": name,
        "synthesis": mode,
        "right": _share(present),
        "lower bound": f"{bound:.1%}",
        "bar": "met" if bound >= BAR else "missed",
        **by_kind,
        "unknown": _share(unknown),
        "s a query": round((time.monotonic() - started) / len(asked), 2),
    }


def _share(right: list[bool]) -> str:
    return f"{sum(right)}/{len(right)}"


async def run(arguments: Namespace) -> list[dict[str, object]]:
    node = Node(
        NodeConfig(
            tuple(
                dataclasses.replace(engine, num_threads=arguments.num_threads)
                for engine in engine_configs(arguments.model, None)
            ),
            encoders=encoder_configs(arguments.encoder),
        )
    )
    await node.start()
    try:
        return [
            await measure(node, name, mode, arguments)
            for name, mode in CASES
            if (not arguments.cases or f"{name}/{mode}" in arguments.cases)
            and (name == "naive-rag") is not arguments.ranked
        ]
    finally:
        await node.stop()


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--encoder", action="append", required=True, help="[NAME=]DIRECTORY")
    made.add_argument("--model", action="append", default=[], help="[NAME=]DIRECTORY")
    made.add_argument("--ranked", action="store_true", help="ask the applications that rank")
    made.add_argument("--num", type=int, default=500, help="questions (default: 500)")
    made.add_argument("--at-once", type=int, default=4, help="queries (default: 4)")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--cases", nargs="*", help="only these, e.g. naive-rag/tree")
    made.add_argument("--wrong", action="store_true", help="print the wrong answers")
    made.add_argument("--num-threads", type=int, help="of the engine")
    arguments = made.parse_args()
    if arguments.quick:
        arguments.num = min(arguments.num, 20)
    rows = asyncio.run(run(arguments))
    print_table("answers (95 % Wilson bound, bar 90 %)", rows)
    models = [str(engine.name) for engine in engine_configs(arguments.model, None)]
    benchmark = "ayo/answers-ranked" if arguments.ranked else "ayo/answers"
    emit(benchmark, arguments.out, num=arguments.num, models=models, rows=rows)


if __name__ == "__main__":
    main()

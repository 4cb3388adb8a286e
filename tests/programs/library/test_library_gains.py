"""What the guide's commands answer with the shipped model, and that their figures show a gain.

CodeAct needs a sandbox too and is run by tests/node/test_node_codeact.py.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from quire.core.config import NodeConfig
from quire.node import Node
from quire.programs.library import LIBRARY
from tools.library_answers import ENGINE, answers, shown

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "library-answers.json"
TOLD: Mapping[str, Any] = json.loads(PAGE.read_text(encoding="utf-8"))
COMMANDS = [command for command in shown() if " codeact " not in command]
EXEMPT = {"text_completion", "retrieval", "codeact"}
"""The shortest program, which is what the others are compared with; one that needs an encoder."""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def program_of(command: str) -> str:
    return shlex.split(command)[2]


def finds(what: str) -> Callable[[Any], bool]:
    """The technique finds ``what``, and plain decoding says something else."""
    return lambda one: one["answer"] == what and what not in str(one["plain"])


def says(what: str) -> Callable[[Any], bool]:
    """The technique saves something and still says ``what``, as plain decoding does."""
    return lambda one: what in one["text"] and what in one["plain"]


def marks_early(one: Any) -> bool:
    first, _, whole = one["calls"][0]["started_at"].partition(" of ")
    return int(first) < int(whole.removesuffix(" characters"))


GAINS: Mapping[str, Callable[[Any], bool]] = {
    "low_level_completion": lambda one: 0 < one["least_sure"] < 0.5,
    "parallel_generation": lambda one: (
        one["texts"] == ["Answer: 31", "Answer: 9", "Answer: 55"]
        and one["num_pages"] < one["num_pages_unshared"]
    ),
    "prefix_caching": lambda one: (
        one[0]["num_cached_tokens"] == 0 and one[1]["num_cached_tokens"] >= 16
    ),
    "modular_caching": lambda one: (
        [answer["num_imported_tokens"] for answer in one] == [0, 2, 23]
        and [answer["text"] for answer in one] == ["Answer: 31", "Answer: 9", "Answer: 31"]
    ),
    "movable_modules": lambda one: (
        one[0]["text"] == one[1]["text"] == "Answer: 9"
        and one[1]["num_imported_tokens"] == one[1]["num_module_tokens"]
    ),
    "streaming": lambda one: (
        one["num_tokens"] > one["max_model_len"] and one["pages"] * 10 < one["pages_without_window"]
    ),
    "windowed_attention": lambda one: (
        says("31")(one) and one["most_pages_while_generating"] < one["pages_without_window"]
    ),
    "attention_sink": lambda one: (
        says("31")(one) and one["most_pages_while_generating"] < one["pages_without_window"]
    ),
    "hierarchical_attention": lambda one: (
        says("31")(one) and one["num_pairs_seen"] < one["num_pairs_of_all"]
    ),
    "heavy_hitters": lambda one: says("55")(one) and one["num_pages"] < one["num_pages_of_all"],
    "snapkv": lambda one: says("55")(one) and len(one["kept_pages"]) < one["num_pages_of_prompt"],
    "json_output": lambda one: (
        one["answer"] == {"name": "Kabo", "age": 31} and not one["plain"].startswith("{")
    ),
    "ebnf_decoding": lambda one: one["text"] == "green" or one["text"].endswith("Answer: 65"),
    "token_healing": lambda one: (
        one["written"] == [" small"] and not one["plain"].startswith("all")
    ),
    "output_validation": lambda one: (
        one["is_valid"]
        and one["num_rejected"] > 0
        and "language" not in one["text"]
        and "language" in one["plain"]
    ),
    "watermarking": lambda one: one["z"] > 4 > one["z_without_bias"],
    "watermark_detection": lambda one: one["is_marked"] == (one["z"] >= 4),
    "beam_search": lambda one: one["beams"][0]["score"] > one["plain"]["score"] + 0.05,
    "best_of_n": lambda one: (
        one["text"] == one["all"][0]["text"]
        and one["all"][0]["score"] > one["all"][-1]["score"] + 1
    ),
    "contrastive_decoding": lambda one: one["text"] != one["plain"],
    "context_aware_decoding": lambda one: "Lima" in one["text"] and "Paris" in one["plain"],
    "prompt_lookup": lambda one: one["num_steps"] < one["num_tokens"],
    "speculative_decoding": lambda one: (
        one["num_forward_passes"] < one["num_tokens"] and one["acceptance"] == 1
    ),
    "jacobi_decoding": lambda one: one["num_forward_passes"] < one["num_tokens"],
    "self_consistency": lambda one: finds("2150")(one) and one["num_votes"] > 7 / 2,
    "tree_of_thought": finds("2224"),
    "recursion_of_thought": lambda one: finds("219")(one) and one["num_asked"] > 1,
    "graph_of_thought": finds("11409"),
    "skeleton_of_thought": lambda one: (
        one["num_steps"] < one["num_steps_one_by_one"] and one["num_prompt_tokens_shared"] > 16
    ),
    "mcts": lambda one: finds("2224")(one) and one["num_texts"] > 1,
    "react": finds("36"),
    "swarm": finds("36"),
    "async_tools": marks_early,
}


@pytest.fixture(scope="module")
def answered() -> Mapping[str, Any]:
    async def run() -> Mapping[str, Any]:
        node = Node(NodeConfig(engines=(ENGINE,)))
        await node.start()
        try:
            return await answers(node, COMMANDS)
        finally:
            await node.stop()

    return asyncio.run(run())


def without_times(answer: Any) -> Any:
    """Without what depends on when a piece of text comes."""
    if isinstance(answer, dict):
        return {key: without_times(one) for key, one in answer.items() if key != "started_at"}
    return [without_times(one) for one in answer] if isinstance(answer, list) else answer


def comparable(answer: Any) -> Any:
    """Numbers near what they are on another machine."""
    answer = without_times(answer)
    if isinstance(answer, dict):
        return {key: comparable(one) for key, one in answer.items()}
    if isinstance(answer, list):
        return [comparable(one) for one in answer]
    return pytest.approx(answer, abs=0.02) if isinstance(answer, float) else answer


def test_every_program_shows_a_gain() -> None:
    assert set(GAINS) | EXEMPT == set(LIBRARY)


@pytest.mark.parametrize("command", COMMANDS, ids=program_of)
def test_a_command_answers_what_the_guide_says(command: str, answered: Mapping[str, Any]) -> None:
    mine = without_times(answered[command])
    assert mine == comparable(TOLD[command]), "run `make answers docs` and look at what has changed"


@pytest.mark.parametrize(
    "command", [one for one in COMMANDS if program_of(one) in GAINS], ids=program_of
)
def test_a_command_shows_what_its_technique_gains(
    command: str, answered: Mapping[str, Any]
) -> None:
    assert GAINS[program_of(command)](answered[command]), answered[command]


def test_a_watermark_is_found_by_who_has_the_key(answered: Mapping[str, Any]) -> None:
    found = [
        answered[one]["is_marked"] for one in COMMANDS if program_of(one).endswith("detection")
    ]
    assert found == [True, False]

"""Defines what a training document is, how chat turns are spelled, and which instances are held
out.

Everything the model reads or writes is text with the special tokens in it.  ``chat_template.jinja``
spells the same turns for users; a test keeps the two equal.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

BOS, PAD, END = "<|bos|>", "<|pad|>", "<|end|>"
SYSTEM, USER, ASSISTANT, TOOL = "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
SPECIAL_TOKENS = (BOS, PAD, END, SYSTEM, USER, ASSISTANT, TOOL)
ADDED_TOKENS = (CALL_OPEN, CALL_CLOSE)


class Split(Enum):
    """Training instances, or the one in fifty that no training document contains."""

    TRAIN = "train"
    HELD_OUT = "held_out"


def in_split(key: object, split: Split) -> bool:
    """Return whether the instance named by ``key`` belongs to ``split``; stable between runs."""
    held_out = zlib.crc32(repr(key).encode()) % 50 == 0
    return held_out is (split is Split.HELD_OUT)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of text that the model writes (``learned``) or only reads."""

    text: str
    learned: bool


@dataclass(frozen=True, slots=True)
class Document:
    """One training document; the evaluation asks for the part after the first prompt.

    ``answer`` is what the scorer of the task compares; ``kind`` splits a task in the report;
    ``records`` is the table behind the ``lookup`` tool of this document.
    """

    task: str
    kind: str
    segments: tuple[Segment, ...]
    answer: str
    records: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return BOS + "".join(segment.text for segment in self.segments)

    @property
    def prompt(self) -> str:
        """Return everything before the first learned segment."""
        texts = [BOS]
        for segment in self.segments:
            if segment.learned:
                break
            texts.append(segment.text)
        return "".join(texts)


def turn(role: str, content: str) -> str:
    """Return one finished message, ``role`` being one of the role tokens."""
    return f"{role}{content}{END}"


def asked(*turns: str) -> Segment:
    """Return finished messages followed by the mark that lets the assistant speak."""
    return Segment("".join(turns) + ASSISTANT, learned=False)


def said(content: str) -> Segment:
    """Return an assistant message that the model must learn to write."""
    return Segment(content + END, learned=True)


def system_turn(*lines: str) -> tuple[str, ...]:
    """Return a system message of the non-empty lines, or none."""
    content = "\n".join(line for line in lines if line)
    return (turn(SYSTEM, content),) if content else ()


def call_text(name: str, arguments: Mapping[str, object]) -> str:
    """Return one tool call in the Hermes convention."""
    body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"{CALL_OPEN}{body}{CALL_CLOSE}"


def conversation(
    task: str,
    kind: str,
    exchanges: Sequence[tuple[str, str]],
    system: str = "",
) -> Document:
    """Return a document of (user, assistant) pairs; the first reply is the answer."""
    segments: list[Segment] = []
    for index, (user, assistant) in enumerate(exchanges):
        opening = system_turn(system) if index == 0 else ()
        segments += [asked(*opening, turn(USER, user)), said(assistant)]
    return Document(task, kind, tuple(segments), exchanges[0][1])

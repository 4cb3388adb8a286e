"""Facts about people, and nodes with the shipped model and encoders that count words.

Counting words tells facts about different people apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import tokenizers

from quire.core.config import EncoderConfig, EngineConfig, NodeConfig
from quire.core.ids import ModelId
from quire.engine.encoders.text import EncoderTexts
from quire.node import SHIPPED_MODEL, Node
from quire.node.encoders.transport import EncoderTransports, in_process_encoder
from quire.testing import FakeEncoder

NAMES = ("Kabo", "Lin", "Tom", "Nina", "Anna", "Frank", "Zoe", "Ben")
JOBS = ("baker", "doctor", "pilot", "farmer", "teacher", "nurse", "painter", "driver")


@dataclass(frozen=True, slots=True)
class Facts:
    """Sentences in any order, and the questions that they answer: the sentence's place, the
    answer."""

    passages: list[str]
    questions: dict[str, tuple[int, str]]


def facts(seed: int) -> Facts:
    random = Random(seed)
    jobs = random.sample(JOBS, len(JOBS))
    told = [
        (f"What is the job of {name}?", f"The job of {name} is {job}.", job)
        for name, job in zip(NAMES, jobs, strict=True)
    ]
    for name in NAMES:
        age = str(random.randint(20, 79))
        told.append((f"What is the age of {name}?", f"The age of {name} is {age}.", age))
    random.shuffle(told)
    return Facts(
        [sentence for _, sentence, _ in told],
        {question: (place, answer) for place, (question, _, answer) in enumerate(told)},
    )


FACTS = facts(1)


def word_texts(source: str) -> EncoderTexts:
    words = {word for one in FACTS.passages for word in one.rstrip(".").split()}
    vocab = {"[UNK]": 0, "[SEP]": 1}
    vocab |= {word: 2 + index for index, word in enumerate(sorted(words))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A", pair="$A [SEP] $B:1", special_tokens=[("[SEP]", 1)]
    )
    return EncoderTexts(tokenizer, 64, "")


def node_with(model: str = SHIPPED_MODEL, **encoders: FakeEncoder) -> Node:
    """``model``: a shipped one, by name."""
    engine = EngineConfig(source=model, name=ModelId(model))
    configs = tuple(EncoderConfig(source=name, name=ModelId(name)) for name in encoders)
    transports = EncoderTransports(
        lambda config, on_progress: in_process_encoder(config.name, lambda: encoders[config.name]),
        word_texts,
    )
    config = NodeConfig(engines=(engine,), encoders=configs, engine_process=False)
    return Node(config, encoder_transports=transports)

"""Shows how much of the distance to the paper's figures lies in what the paper does not say:
baselines whose engines batch less well than control does, and prompts with longer instructions.

What is taken from elsewhere, one thing at a time and all together:

* *timeout*: an encoder waits 0.1 s for a full batch, the ``batch_wait`` in the configuration of the
  prototype's examples (NetX-lab/Ayo). The paper's TO has a timeout and does not say which;
* *by request*: batches of four texts and of two sequences, as the existing frameworks of Fig. 4;
* *instructions*: 600 tokens in front of each prompt, about as many as in the prototype's prompts
  (898 with two short passages, by its log). The paper has "around 60" for the search.

Engines and Quire stay the same but for the instructions, which all systems have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from benchmarks.ayo.applications import ADVANCED, INSTRUCTION, NAIVE, SEARCH, Application
from benchmarks.ayo.figures import CHAIN, QUIRE, Row, Setting
from benchmarks.ayo.playing import play_one, seconds_of
from benchmarks.ayo.texts import CHARS_PER_TOKEN

TIMEOUT_S = 0.1
INSTRUCTION_TOKENS = 600
LONG = (INSTRUCTION * 12)[: INSTRUCTION_TOKENS * CHARS_PER_TOKEN]
BY_REQUEST = {"max_batch": 4, "max_sequences": 2}


@dataclass(frozen=True, slots=True)
class Variant:
    """``baseline``: what is stated of LlamaDist's engines instead."""

    baseline: Mapping[str, Any] = field(default_factory=dict)
    instruction: str = INSTRUCTION


VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "as stated": Variant(),
        "timeout": Variant({"timeout_s": TIMEOUT_S}),
        "by request": Variant(BY_REQUEST),
        "instructions": Variant({}, LONG),
        "all": Variant({"timeout_s": TIMEOUT_S, **BY_REQUEST}, LONG),
    }
)


def rows(setting: Setting, core: str) -> list[Row]:
    """Play one query of each application under LlamaDist-TO and Quire, and return its rows."""
    return [
        _row(setting, application, core, name, variant)
        for application in (SEARCH, NAIVE, ADVANCED)
        for name, variant in VARIANTS.items()
    ]


def _row(setting: Setting, application: Application, core: str, name: str, variant: Variant) -> Row:
    asked = application.instructed(variant.instruction)
    baseline = replace(setting.stated, **variant.baseline)
    chain_s = seconds_of(play_one(CHAIN, asked, baseline, core))
    quire_s = seconds_of(play_one(QUIRE, asked, setting.stated, core))
    row: Row = {"application": application.name, "variant": name}
    row |= {"LlamaDist s": round(chain_s, 3), "quire s": round(quire_s, 3)}
    return row | {"faster": round(chain_s / quire_s, 2)}

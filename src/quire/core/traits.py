"""The programming interface's traits and their versions (Pie 4.4).

A trait is a set of functions that a model's backend offers together. A program asks which traits a
model has; a backend that lacks one does not list it. Versions are integers. An added function
raises the version, so that a program can require it; the functions of older versions stay.
"""

from __future__ import annotations

from enum import StrEnum


class Trait(StrEnum):
    CORE = "Core"
    MESSAGING = "Messaging"
    NET = "Net"
    STORE = "Store"
    ALLOCATE = "Allocate"
    FORWARD = "Forward"
    INPUT_TEXT = "InputText"
    INPUT_IMAGE = "InputImage"
    TOKENIZE = "Tokenize"
    OUTPUT_TEXT = "OutputText"
    SAMPLE = "Sample"
    DECODE = "Decode"
    GRAMMAR = "Grammar"
    ADAPTER = "Adapter"
    SCORES = "Scores"
    REPOSITION = "Reposition"
    ENCODE = "Encode"
    DOCUMENTS = "Documents"
    VECTORS = "Vectors"
    SEARCH = "Search"


VERSIONS: dict[Trait, int] = {
    **dict.fromkeys(Trait, 1),
    Trait.CORE: 4,  # 2: time, randomness, logs, children; 3: launch names its thread; 4: depth
    Trait.MESSAGING: 2,  # broadcast, subscribe, push, pull
    Trait.NET: 3,  # 2: http_stream, mcp_connect; 3: mcp_connect to a server of the node
    Trait.ALLOCATE: 3,  # 2: list_exports; 3: import_text
    Trait.DECODE: 2,  # num_generated
    Trait.VECTORS: 2,  # thread, depth, priority, invocation and remaining_us of put and search
    Trait.ENCODE: 4,  # 2: thread, depth, priority of embed and rerank; 3: invocation; 4: batches
}
"""The present version of each trait. It is raised with every change that could affect a program;
programs for older versions keep working."""

SUPERTRAITS: dict[Trait, tuple[Trait, ...]] = {
    Trait.FORWARD: (Trait.ALLOCATE,),
    Trait.INPUT_TEXT: (Trait.ALLOCATE, Trait.FORWARD),
    Trait.INPUT_IMAGE: (Trait.ALLOCATE, Trait.FORWARD),
    Trait.TOKENIZE: (Trait.INPUT_TEXT,),
    Trait.OUTPUT_TEXT: (Trait.ALLOCATE,),
    Trait.SAMPLE: (Trait.OUTPUT_TEXT,),
    Trait.DECODE: (Trait.FORWARD, Trait.SAMPLE),
    Trait.GRAMMAR: (Trait.DECODE,),
    Trait.ADAPTER: (Trait.FORWARD,),
    Trait.SCORES: (Trait.FORWARD,),
    Trait.REPOSITION: (Trait.ALLOCATE,),
}

NODE_TRAITS = frozenset(
    {
        Trait.CORE, Trait.MESSAGING, Trait.NET, Trait.STORE, Trait.DOCUMENTS, Trait.VECTORS,
        Trait.SEARCH,
    }
)  # fmt: skip
"""Traits that the node itself serves, for any model."""

ENCODER_TRAITS = frozenset({Trait.ENCODE})
"""Traits of a node with encoders (embedding models, cross-encoders)."""

MODEL_TRAITS = frozenset(Trait) - NODE_TRAITS - ENCODER_TRAITS
"""Traits of a model."""

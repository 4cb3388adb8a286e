"""How the node reaches an encoder: in a process of its own, or in this one for tests.

Must not know who waits for what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.core.config import EncoderConfig
from quire.core.encoding import EncoderCore
from quire.core.interfaces import EncoderTransport
from quire.engine.encoders.text import EncoderTexts, load_texts
from quire.node.encoders.engine import EncoderEngine
from quire.node.engine_loading import OnProgress
from quire.node.transports import InProcessTransport, ZeroMQTransport


def in_process_encoder(name: str, load: Callable[[], EncoderCore]) -> InProcessTransport:
    """On a thread of this process, where ``load`` makes it."""
    return InProcessTransport(name, lambda: EncoderEngine(load()))


@dataclass(frozen=True, slots=True)
class EncoderTransports:
    """Where encoders and what they know of texts come from. ``read_texts`` gets a source and may
    block."""

    make: Callable[[EncoderConfig, OnProgress], EncoderTransport] = ZeroMQTransport
    read_texts: Callable[[str], EncoderTexts] = load_texts

"""The connection to an encoder: in a process of its own, or in this process for tests.

Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.core.config import EncoderConfig
from quire.core.encoding import EncoderCore
from quire.core.interfaces import EncoderTransport
from quire.engine.encoders.text import EncoderTexts, load_texts
from quire.node.encoders.engine import EncoderEngine
from quire.node.supervision.engine_loading import OnProgress
from quire.node.transports import InProcessTransport, ZeroMQTransport


def in_process_encoder(name: str, load: Callable[[], EncoderCore]) -> InProcessTransport:
    """A transport to an encoder on a thread of this process; ``load`` makes it on that thread."""
    return InProcessTransport(name, lambda: EncoderEngine(load()))


@dataclass(frozen=True, slots=True)
class EncoderTransports:
    """``make`` reaches an encoder; ``read_texts`` loads the rules by which the model of a source
    reads texts, and may block."""

    make: Callable[[EncoderConfig, OnProgress], EncoderTransport] = ZeroMQTransport
    read_texts: Callable[[str], EncoderTexts] = load_texts

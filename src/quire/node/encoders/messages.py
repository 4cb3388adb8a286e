"""What the node and an encoder process say to each other: as with engines, but for the batches."""

from __future__ import annotations

import msgspec

from quire.core.config import EncoderConfig
from quire.core.encoding import EncodeBatch, EncodeResult, EncoderInfo
from quire.core.wire import Codec
from quire.node.transports.messages import Hello, LoadFailed, Progress, Refused, Welcome


class EncoderReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    info: EncoderInfo


FromEncoder = Hello | Progress | EncoderReady | LoadFailed | EncodeResult
ToEncoder = Welcome | Refused | EncodeBatch


class EncoderOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The first line on the process's standard input, as JSON."""

    version: int
    endpoint: str
    token: str
    config: EncoderConfig


def from_encoder_codec() -> Codec[FromEncoder]:
    """What the node decodes."""
    return Codec(FromEncoder)


def to_encoder_codec() -> Codec[ToEncoder]:
    """What an encoder process decodes."""
    return Codec(ToEncoder)

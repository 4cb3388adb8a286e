"""What runs in an encoder process: ``python -m quire.node.encoder_process``.

Reads its launch order from standard input, shakes hands with the node, loads the model, then
encodes batches in order until it is told to end. A batch that the model cannot run is answered with
its error; anything else that goes wrong ends the process, and the node starts it again.
"""

from __future__ import annotations

import sys

import numpy as np

from quire.core.config import EncoderConfig
from quire.core.encoding import EncodeBatch, EncoderCore, EncodeResult
from quire.core.errors import ProtocolMismatch, QuireError
from quire.node.child_link import EXIT_LOAD_FAILED, Executing, NodeLink, live
from quire.node.child_process import LifeLine
from quire.node.encoders.messages import (
    EncoderOrder,
    EncoderReady,
    ToEncoder,
    from_encoder_codec,
    to_encoder_codec,
)
from quire.node.transports.messages import LoadFailed, Progress


def _load(link: NodeLink[ToEncoder], config: EncoderConfig) -> EncoderCore:
    """Late: the process greets before it imports torch."""
    from quire.engine.encoders.encoder import Encoder

    return Encoder(
        config,
        lambda done, total: link.say(Progress(stage="loading weights", fraction=done / total)),
    )


def _serve(link: NodeLink[ToEncoder], order: EncoderOrder, executing: Executing) -> int:
    try:
        encoder = _load(link, order.config)
    except QuireError as exc:
        link.say(LoadFailed(error=exc.record()))
        return EXIT_LOAD_FAILED
    link.say(EncoderReady(info=encoder.info))
    while True:
        batch = link.hear()
        if not isinstance(batch, EncodeBatch):
            raise ProtocolMismatch(f"expected a batch, got {type(batch).__name__}")
        with executing:
            link.say(_encoded(encoder, batch))


def _encoded(encoder: EncoderCore, batch: EncodeBatch) -> EncodeResult:
    try:
        return encoder.encode(batch)
    except QuireError as exc:
        nothing = np.empty((0, 0), np.float32)
        return EncodeResult(number=batch.number, rows=nothing, error=exc.record())


def main() -> int:
    lifeline = LifeLine()
    order = lifeline.read_order(EncoderOrder)
    return live(
        order,
        lifeline,
        to_encoder_codec(),
        from_encoder_codec(),
        lambda link, executing: _serve(link, order, executing),
    )


if __name__ == "__main__":
    sys.exit(main())

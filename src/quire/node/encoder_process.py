"""What runs in an encoder process: ``python -m quire.node.encoder_process``.

Reads its launch order from standard input, shakes hands with the node, loads the model, then
encodes batches in order until it is told to end. A batch that the model cannot run is answered with
its error; anything else that goes wrong ends the process, and the node starts it again.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading

import msgspec
import numpy as np

from quire.core.config import EncoderConfig
from quire.core.encoding import EncodeBatch, EncoderCore, EncodeResult
from quire.core.errors import ProtocolMismatch, QuireError
from quire.node.child_link import EXIT_LOAD_FAILED, EXIT_REFUSED, Executing, NodeLink
from quire.node.child_process import (
    EXIT_NODE_GONE,
    answer_heartbeats,
    die_with_parent,
    take_stdin,
    take_stdout,
)
from quire.node.encoders.messages import (
    EncoderOrder,
    EncoderReady,
    ToEncoder,
    from_encoder_codec,
    to_encoder_codec,
)
from quire.node.transports.messages import LoadFailed, Progress

logger = logging.getLogger(__name__)


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
    die_with_parent()
    lifeline, answers = take_stdin(), take_stdout()
    line = lifeline.readline()
    if not line:
        return EXIT_NODE_GONE
    order = msgspec.json.decode(line, type=EncoderOrder)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    executing = Executing()
    signal.signal(signal.SIGTERM, executing.on_sigterm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node decides when its encoders end
    threading.Thread(
        target=answer_heartbeats, args=(lifeline, answers, executing.busy_s), daemon=True
    ).start()
    link = NodeLink(order.endpoint, to_encoder_codec(), from_encoder_codec())
    try:
        link.shake_hands(order.token)
        return _serve(link, order, executing)
    except ProtocolMismatch as exc:
        logger.error("%s", exc)
        return EXIT_REFUSED
    finally:
        link.close()


if __name__ == "__main__":
    sys.exit(main())

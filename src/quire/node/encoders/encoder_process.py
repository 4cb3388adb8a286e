"""The main module of an encoder process: ``python -m quire.node.encoders.encoder_process``.

Its life is that of an engine process (``engine_process``), with a model that keeps no state.
"""

from __future__ import annotations

import sys

from quire.core.config import EncoderConfig
from quire.node.encoders.engine import EncoderEngine
from quire.node.engines.engine_process import serve
from quire.node.supervision.engine_loading import OnProgress
from quire.node.transports.child_link import live
from quire.node.transports.child_process import LifeLine
from quire.node.transports.messages import EncoderOrder, engine_codec, node_codec


def _load(config: EncoderConfig, on_progress: OnProgress) -> EncoderEngine:
    """Imported late: the process greets the node before it imports torch."""
    from quire.engine.encoders.encoder import TorchEncoder

    return EncoderEngine(
        TorchEncoder(config, lambda done, total: on_progress("loading weights", done / total))
    )


def main() -> int:
    """Run the process and return its exit status."""
    lifeline = LifeLine()
    order = lifeline.read_order(EncoderOrder)
    return live(
        order,
        lifeline,
        node_codec(),
        engine_codec(),
        lambda link, executing: serve(link, order.config, _load, executing),
    )


if __name__ == "__main__":
    sys.exit(main())

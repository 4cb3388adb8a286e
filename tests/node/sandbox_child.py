"""A sandbox process whose models have fake tokenizers: ``python sandbox_child.py MODE``.

MODE: ``serve`` · ``old`` (greets with another protocol version).
"""

from __future__ import annotations

import sys

from fake_node import fake_model_files

from quire.node import sandbox_process

if __name__ == "__main__":
    if sys.argv[1] == "old":
        import quire.core.wire

        sandbox_process.PROTOCOL_VERSION = 0  # type: ignore[misc]
        quire.core.wire.PROTOCOL_VERSION = 0  # type: ignore[misc]
    sys.exit(sandbox_process.main(fake_model_files))

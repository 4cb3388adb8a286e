"""An engine process never outlives its node, however the node ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a process by its pidfd"),
]

NODE = """
import asyncio, sys
from quire.core.config import EngineConfig
from quire.node.transports import ZeroMQTransport

async def main():
    command = (sys.executable, sys.argv[1], "serve")
    transport = ZeroMQTransport(EngineConfig(source="fake", name="fake"), None, None, command)
    await transport.start(print, print)
    print(transport.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_engine_ends_with_its_node(how: signal.Signals) -> None:
    child = str(Path(__file__).with_name("engine_child.py"))
    with subprocess.Popen(
        [sys.executable, "-c", NODE, child], stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        engine = os.pidfd_open(int(node.stdout.readline()))
        try:
            node.send_signal(how)
            assert node.wait() == -how
            gone, _, _ = select.select([engine], [], [], 60)
            assert gone
        finally:
            os.close(engine)

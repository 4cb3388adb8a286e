"""A Ray that is gone is told of at once: its own client would try for minutes."""

from __future__ import annotations

import socket

import pytest

from quire.cluster.deployment.ray_cluster import check_listens
from quire.core.errors import EngineLost


def test_where_nothing_listens_is_said_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        check_listens(f"127.0.0.1:{port}")
    with pytest.raises(
        EngineLost, match=rf"Ray at 127\.0\.0\.1:{port} cannot be reached: .*refused"
    ):
        check_listens(f"127.0.0.1:{port}")


def test_a_name_that_nobody_has_is_no_address() -> None:
    with pytest.raises(EngineLost, match=r"Ray at no-such-host\.invalid:1 cannot be reached"):
        check_listens("no-such-host.invalid:1")

from __future__ import annotations

from collections.abc import Iterator

import pytest
from parallel_engines import tiny

from quire.engine.parallel.group import RankGroup


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankGroup]:
    """Two ranks that serve one engine after another, because a process takes seconds to start."""
    group = RankGroup.start(tiny("none"))
    yield group
    group.close()

"""Commands that run inside the test's process leave its logging as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from same_logging import same_logging


@pytest.fixture(autouse=True)
def _same_logging() -> Iterator[None]:
    with same_logging():
        yield

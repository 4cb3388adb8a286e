"""Commands that run inside the test's process leave its logging as it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from quire.cli.log_output import CHATTY_LOGGERS, REQUEST_LOGGER


@contextmanager
def same_logging() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("", REQUEST_LOGGER, *CHATTY_LOGGERS)]
    before = [(logger.level, list(logger.handlers), logger.propagate) for logger in loggers]
    yield
    for logger, (level, handlers, propagate) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagate

"""The log output of a serving process.

One JSON line per finished request on stdout, everything else as text on stderr, so that the two can
be collected separately.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

REQUEST_LOGGER = "quire.requests"
STARTING_LOGGERS = ("quire.node.supervision.supervisor",)
"""Loggers that report engines and encoders which are given up."""
CHATTY_LOGGERS = ("httpx", "httpcore", "uvicorn")
"""Libraries that log every call or connection at INFO. Quire logs the relevant part itself."""

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"


def configure_logging(level: str, *, log_requests: bool) -> None:
    """Set up the handlers of this process. ``level``: a name of ``logging``, in any case."""
    logging.basicConfig(level=level.upper(), format=_FORMAT, stream=sys.stderr, force=True)
    for name in CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    requests = logging.getLogger(REQUEST_LOGGER)
    requests.propagate = False
    requests.handlers.clear()
    requests.setLevel(logging.INFO if log_requests else logging.CRITICAL)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    requests.addHandler(handler)


@contextmanager
def errors_of_starting_raised_only() -> Iterator[None]:
    """Suppress duplicates while the node starts: an engine or encoder that is given up ends the
    command with its error, so the log record of that error is dropped. Records with a traceback,
    which are bugs, are kept."""
    loggers = [logging.getLogger(name) for name in STARTING_LOGGERS]

    def is_news(record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR or record.exc_info is not None

    for logger in loggers:
        logger.addFilter(is_news)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_news)

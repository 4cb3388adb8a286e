"""Where log records of a serving process go.

One JSON line per finished request on stdout, everything else as text on stderr, so that the two can
be collected apart.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

REQUEST_LOGGER = "quire.requests"
STARTING_LOGGERS = ("quire.node.supervisor",)
"""Tell of engines and encoders that are given up."""
CHATTY_LOGGERS = ("httpx", "httpcore", "uvicorn")
"""Libraries whose every call or connection is an INFO record; ours say what matters of it."""

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
    """While the node starts: an engine or encoder that is given up ends the command with that very
    error, so its record in the log would say it twice. Records with a traceback, which are bugs,
    stay."""
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

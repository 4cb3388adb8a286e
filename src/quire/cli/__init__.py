"""The composition root: reads options and the environment, builds configurations, starts things.

One module per command. Nothing imports this package.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from quire.cli.exit_codes import EXIT_INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ``quire`` command.

    Its modules are imported here, inside the handler for Ctrl-C: the import takes a while on a busy
    machine.
    """
    try:
        from quire.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    run(arguments)


__all__ = ["main"]

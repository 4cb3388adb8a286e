"""The composition root: reads options and the environment, builds configurations, starts things.

One module per command. Nothing imports this package.
"""

from quire.cli.app import build_app, main

__all__ = ["build_app", "main"]

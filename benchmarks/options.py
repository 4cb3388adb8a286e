"""Defines the options that the scripts share, and selects the form of control as ``quire serve``
does.

``QUIRE_COMPILED=0`` selects interpreted control; the results state the form used (``report``).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.checkpoints import SHAPES
from benchmarks.peers.catalog import DEFAULT_CACHE, OURS, PEERS, default_peers
from quire.cli.compiled_control import choose_form

choose_form()  # here, because scripts import these options before they import a node

ROUNDS, QUICK_ROUNDS = 7, 2
DEFAULT_OUT = Path("benchmark-results")


def parser(
    description: str | None, *, models: Sequence[str] = ("small",)
) -> argparse.ArgumentParser:
    """Return a parser with the options of every engine script; ``rounds_of`` reads the number of
    rounds."""
    made = plain_parser(description)
    made.add_argument(
        "--models", nargs="+", choices=SHAPES, default=list(models), help="default: %(default)s"
    )
    made.add_argument(
        "--cache",
        type=Path,
        default=DEFAULT_CACHE,
        help="folder of models and peers, see benchmarks/peers/install.py (default: %(default)s)",
    )
    made.add_argument("--num-threads", type=int, help="of Quire's engine (default: its own choice)")
    return made


def plain_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every script, including those without a model."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--rounds",
        type=int,
        default=None,
        help=f"interleaved rounds after a warm-up round (default: {ROUNDS})",
    )
    made.add_argument(
        "--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, for a quick try"
    )
    made.add_argument(
        "--out",
        type=Path,
        default=DEFAULT_OUT,
        help="folder for the JSON and the figure (default: %(default)s)",
    )
    return made


def add_contenders(made: argparse.ArgumentParser, ours: Sequence[str] = OURS) -> None:
    """Add the options that choose contenders. ``ours``: Quire's own contenders that are measured by
    default, beside the peers."""
    made.add_argument(
        "--contenders",
        nargs="+",
        choices=(*OURS, *PEERS),
        default=[*ours, *default_peers()],
        help="default: %(default)s; those that are not installed are left out. quire-fine: a "
        "program that looks at every step; quire-torch: without the native kernel; quire-engine: "
        "the engine without node and programs; quire-int8: int8 weights",
    )


def rounds_of(arguments: argparse.Namespace) -> int:
    if arguments.rounds is not None:
        return max(1, int(arguments.rounds))
    return QUICK_ROUNDS if arguments.quick else ROUNDS

"""All figures of Pie's evaluation with one command; each script draws its own.

    python benchmarks/pie/run.py [--only agents techniques] [--quick] [--peers vllm]

Runs one script after another, each in a process of its own, so that no server stays for the next.
Options are passed to the scripts that know them. A script that fails is reported at the end, after
the others have run. The JSON lines go to stdout, and with the figures to ``--out``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.options import DEFAULT_OUT

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Script:
    """``shows``: which part of the paper. ``options``: the options that it takes."""

    shows: str
    options: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()


SCRIPTS = {
    "agents": Script("Fig. 6", ("models", "peers"), ("--agents", "4", "--at-once", "2")),
    "optimisations": Script("Fig. 7", ("models",), ("--agents", "4", "--at-once", "2")),
    "techniques": Script("Fig. 8", (), ("--questions", "3", "--at-once", "2")),
    "launch": Script("Fig. 9"),
    "calls": Script("Fig. 10"),
    "tpot": Script("Tables 3 and 4", ("models",)),
    "dispatch": Script("Table 5", ("models",)),
}


def command_of(name: str, arguments: argparse.Namespace) -> list[str]:
    script = SCRIPTS[name]
    command = [sys.executable, str(HERE / f"{name}.py"), "--out", str(arguments.out)]
    if arguments.quick:
        command += ["--quick", *script.quick]
    if arguments.rounds is not None:
        command += ["--rounds", str(arguments.rounds)]
    if arguments.models and "models" in script.options:
        command += ["--models", *arguments.models]
    if arguments.peers and "peers" in script.options:
        command += ["--peers", *arguments.peers]
    return command


def main() -> None:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--only", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    made.add_argument(
        "--models", nargs="+", help="for scripts with this option (default: their own)"
    )
    made.add_argument("--rounds", type=int, help="interleaved rounds (default: their own)")
    made.add_argument("--quick", action="store_true", help="few rounds and agents, for a quick try")
    made.add_argument(
        "--peers", nargs="+", help="other servers to run the agents on (default: none)"
    )
    made.add_argument("--out", type=Path, default=DEFAULT_OUT, help="default: %(default)s")
    arguments = made.parse_args()
    failed = []
    for name in arguments.only:
        print(f"pie/{name}: {SCRIPTS[name].shows}", file=sys.stderr, flush=True)
        began_s = time.perf_counter()
        status = subprocess.run(command_of(name, arguments), check=False).returncode
        print(f"pie/{name}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr, flush=True)
        if status:
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

"""Measures what compiling the control core saves the node: the same benchmark in both forms, in
turn.

    quire compile && python benchmarks/pie/control_forms.py [--of calls] [--quick]

The form is chosen before a process imports control, so each turn is a process of its own that runs
``calls.py`` (native programs) or ``tpot.py`` once, after its own warm-up round. The figure is the
processor time of the node's process per call, or per step of all programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measurement import figure, ratio, take_turns
from benchmarks.options import plain_parser, rounds_of
from benchmarks.report import emit, print_table
from quire.cli.compiled_control import COMPILED_VARIABLE

HERE = Path(__file__).resolve().parent
FORMS = {"interpreted": "0", "compiled": "1"}
SCRIPTS = {
    "calls": ("calls.py", ("--kinds", "native"), "call", "node_us"),
    "tpot": ("tpot.py", (), "loop", "cpu_ms"),
}
"""The script, its options, the key of a row and the compared field."""


def run_once(name: str, form: str, arguments: Any) -> dict[str, float]:
    """Run the script once and return the medians of its rows. Exits if its process has run the
    other form."""
    script, options, key, measure = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run(
            [sys.executable, str(HERE / script), *options, *arguments.more, "--rounds", "1",
             "--out", out],
            env={**os.environ, COMPILED_VARIABLE: FORMS[form]},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )  # fmt: skip
    result = json.loads(done.stdout.splitlines()[-1])
    if result["control"] != form:
        raise SystemExit(f"control was {result['control']}: see 'quire compile --check'")
    return {row[key]: row[measure]["median"] for row in result["results"] if measure in row}


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--of", choices=SCRIPTS, default="calls", help="default: %(default)s")
    made.add_argument("more", nargs="*", help="options of that script, after --")
    arguments = made.parse_args()
    results = take_turns(
        arguments.of,
        {form: partial(run_once, arguments.of, form, arguments) for form in FORMS},
        rounds_of(arguments),
    )
    rows = []
    for name in results["compiled"][0]:
        values = {form: [one[name] for one in results[form]] for form in FORMS}
        shares = ratio(values["compiled"], values["interpreted"]).rounded(3)
        rows.append(
            {"of": name, "measure": SCRIPTS[arguments.of][3]}
            | {form: figure(values[form]).rounded() for form in FORMS}
            | {"compiled_over_interpreted": shares}
        )
    print_table(
        f"{arguments.of} in both forms of control",
        [{k: v["median"] if isinstance(v, dict) else v for k, v in row.items()} for row in rows],
    )
    name = f"pie/control-forms-{arguments.of}"
    emit(name, arguments.out, control="both", more=arguments.more, results=rows)


if __name__ == "__main__":
    main()

"""Starts the node of ``real.py`` as ``quire serve`` does, for clients of other frameworks.

    python -m benchmarks.ayo.real_server --encoder ~/models/minilm --port 8123 --tenants 20

``quire serve`` has no option for rows of a batch that do not depend on others in it, without which
answers of two contenders could not be compared. The tenants have the keys ``key-0``, ``key-1`` and
so on, and models and all else are pinned as in ``real.py`` once the node is ready.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.ayo.real import add_node_options, chat_model, engines_of_models, node_config, pin
from benchmarks.options import plain_parser
from quire.core.config import ServerConfig, TenantConfig
from quire.core.ids import TenantId
from quire.core.interpreter import collect_seldom, settle, take_short_turns
from quire.server.serve import run as run_server


def key_of(number: int) -> str:
    return f"key-{number}"


def main() -> None:
    made = plain_parser(__doc__)
    add_node_options(made)
    made.add_argument("--port", type=int, required=True)
    made.add_argument("--tenants", type=int, required=True, help="how many there are")
    arguments = made.parse_args()
    config = node_config(arguments, chat_model(arguments.core, arguments.cache), ())
    tenants = tuple(
        TenantConfig(TenantId(f"query-{number}"), (key_of(number),))
        for number in range(arguments.tenants)
    )

    def ready(url: str) -> None:
        pin(engines_of_models(), arguments.llm_cores, arguments.other_cores)
        settle()

    take_short_turns()
    collect_seldom()
    run_server(
        dataclasses.replace(config, tenants=tenants),
        ServerConfig(port=arguments.port),
        on_ready=ready,
    )


if __name__ == "__main__":
    main()

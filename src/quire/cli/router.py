"""``quire router``: one address for many nodes, built from options."""

from __future__ import annotations

from quire.cli.console import counted, messages
from quire.cli.log_output import configure_logging
from quire.cli.options.groups import with_groups
from quire.cli.options.router_groups import RouterOptions
from quire.cluster.service import run as run_router
from quire.core.interpreter import collect_seldom


@with_groups
def router(options: RouterOptions) -> None:
    """Serve the API of many nodes at one address; a strategy chooses the node of each request.

    The strategy can be exchanged while the router runs. Clients' keys are passed on to the nodes,
    which check them; with --api-key the router checks them too. The first Ctrl-C (or SIGTERM) lets
    running requests finish, a second one stops at once.

    Examples:

        quire router --node http://127.0.0.1:8001 --node http://127.0.0.1:8002

        quire router --node a=http://node-a:8000 --node b=http://node-b:8000 --strategy cache_aware

        quire router --node http://node-a:8000 --strategy mine.py:route --admin-key-file admin.key
    """
    configure_logging(options.log.log_level, log_requests=options.log.log_requests)
    config, server = options.configs()

    def ready(url: str) -> None:
        where = f"{url} (OpenAI clients: base_url={url}/v1)"
        messages().print(f"Quire routes to {counted(len(config.nodes), 'node')} on {where}")

    collect_seldom()
    run_router(config, server, on_ready=ready)

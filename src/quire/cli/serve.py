"""``quire serve``: a node behind HTTP, built from options."""

from __future__ import annotations

from contextlib import ExitStack

from quire.cli.console import messages
from quire.cli.loading import loading_progress
from quire.cli.log_output import configure_logging, errors_of_starting_raised_only
from quire.cli.options.groups import with_groups
from quire.cli.options.serve import ServeOptions
from quire.core.config import NodeConfig, ServerConfig
from quire.core.interpreter import collect_seldom, settle, take_short_turns
from quire.programs.workflow.applications import Applications
from quire.server.serve import run as run_server


@with_groups
def serve(options: ServeOptions) -> None:
    """Serve models and programs over HTTP until interrupted.

    The first Ctrl-C (or SIGTERM) lets running work finish, a second one stops at once.

    Examples:

        quire serve

        quire serve ~/models/Qwen3-0.6B --port 8080 --kv-cache-bytes 2GiB

        quire serve big=org/model small=quire-mini --api-key "$(openssl rand -hex 16)"

        quire serve ~/models/Qwen3-0.6B --adapter formal=~/adapters/formal

        quire serve ~/models/Qwen3-0.6B --policy atlas --replicas 2 --balancer autellix

        quire serve --encoder bge=~/models/bge-small --encoder-instances bge=2

        quire serve --encoder ~/models/minilm --workflow naive-rag --workflow mine.py:app

        quire serve ~/models/Qwen3-0.6B --cluster-key-file cluster.key
    """
    configure_logging(options.log.log_level, log_requests=options.log.log_requests)
    named = options.workflows.named()
    node, server = options.configs(named)
    _run(node, server, options.workflows.applications(named, node))


def _run(node: NodeConfig, server: ServerConfig, workflows: Applications | None) -> None:
    names = ", ".join(engine.name for engine in node.engines)

    def listening(url: str) -> None:
        messages().print(f"loading {names} ..., listening on {url}")

    def ready(url: str) -> None:
        starting.close()
        text = f"Quire serves {names} on {url} (OpenAI clients: base_url={url}/v1)"
        messages().print(text)
        if workflows is not None:
            at = f"{url}/v1/workflows/NAME/query"
            messages().print(f"Workflows at POST {at}: {', '.join(workflows)}")
        settle()

    take_short_turns()  # the control thread shares the interpreter with the edge
    collect_seldom()
    with ExitStack() as starting:
        progress = starting.enter_context(loading_progress())
        starting.enter_context(errors_of_starting_raised_only())
        run_server(
            node,
            server,
            workflows=workflows,
            progress=progress,
            on_listening=listening,
            on_ready=ready,
        )

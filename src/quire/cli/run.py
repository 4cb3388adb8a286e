"""``quire run``: runs one program, on a node of its own or on a running one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from functools import cache, partial
from typing import Any

import msgspec
import typer

from quire.cli.client import NodeClient
from quire.cli.configuration import DEFAULT_TENANT
from quire.cli.console import output, shown, waiting
from quire.cli.loading import loading_progress
from quire.cli.log_output import configure_logging, errors_of_starting_raised_only
from quire.cli.options.groups import with_groups
from quire.cli.options.node_choice import refuse_beside_url
from quire.cli.options.run import LaunchOptions, RunNodeOptions, RunOptions
from quire.cli.programs import catalogue
from quire.cli.programs.arguments import GivenArguments, require_values, show_help, split
from quire.cli.programs.code import named_program, program_here, request_code
from quire.cli.programs.conversation import Show, converse, read_lines
from quire.cli.programs.end import status_of_end
from quire.cli.programs.own_places import own_places
from quire.cli.programs.sending import sending
from quire.client.attachment import Attachment
from quire.core.config import NodeConfig
from quire.core.errors import InvalidArgument, QuireError
from quire.node import Node, ProgramHandle
from quire.programs import library
from quire.programs.inferlet import Inferlet
from quire.programs.parameters import Parameter
from quire.programs.sandbox.program import GuestProgram


@with_groups
def run(context: typer.Context, options: RunOptions) -> None:
    """Run a program: show its messages as they arrive, then its result.

    Without --url the command starts a node for the program and stops it afterwards; --model,
    --encoder, --encoder-instances, --search, --mcp-servers, --record and --sandbox configure that
    node. With --url the program runs on a running node: a program of the library, one that was
    uploaded ('quire push'), or a file, which runs in that node's sandbox. A WebAssembly module
    always runs in the sandbox.

    Arguments are given by position or by name (--n 5); after a further -- every word is a
    positional argument. Ctrl-C cancels the program; a second one stops waiting for it. Ends with
    status 1 if the program failed.

    Examples:

        quire run --list

        quire run react -- "What is 17 * 23?"

        quire run best_of_n -- "What is 48 + 17?" --num 3

        quire run best_of_n -- --help

        quire run my_agent.py --model ~/models/Qwen3-0.6B -- "some question"

        quire run my_agent.py --sandbox -- "some question"

        quire run my_agent/ -- "some question"

        quire run my_agent.py --url http://127.0.0.1:8000 --interactive

        quire run my_agent --url http://127.0.0.1:8000 --detach --seed 7

        quire run my_chat.py --stream -- "some question"

        quire run retrieval --encoder ~/models/bge-small -- "Where is it?" '["It is here."]'
    """
    configure_logging(options.log_level, log_requests=False)
    node = options.running.client()
    if options.list_programs:
        catalogue.show(catalogue.shipped() if node is None else _listed(node))
        return
    if options.program is None:
        raise InvalidArgument("name a program to run, or list those of the library with --list")
    given = split(options.args or ())
    if given.help:
        _help(options.program, node)
    elif node is not None:
        refuse_beside_url(context, RunNodeOptions, node.url)
        _run_there(node, options.program, given, options.launch)
    else:
        _run_here(options.node, options.program, given, options.launch)


def _run_there(
    node: NodeClient, program: str, given: GivenArguments, launch: LaunchOptions
) -> None:
    """Run the program on a running node."""

    @cache
    def known() -> _KnownProgram | None:
        with node.another() as asked:
            return _known_there(asked, program)

    request = {**request_code(program, lambda: known() is not None), **given.body}
    if given.alone and "program" in request:
        told = known()
        require_values(given, None if told is None else told.parameters)
    if launch.seed is not None:
        request["seed"] = launch.seed
    if launch.detach and (launch.interactive or launch.stream):
        raise InvalidArgument("--detach shows and sends nothing: 'quire attach' does both")
    with node:
        # not in the event loop: while it is blocked, Ctrl-C would not be heard
        public_id = _launch(node, request, program)
        if launch.detach:
            output().print(public_id)
            return
        start = partial(_run_remote, node, public_id, launch.interactive)
        _follow(start, program, launch.stream)


def _run_here(
    wanted: RunNodeOptions, program: str, given: GivenArguments, launch: LaunchOptions
) -> None:
    """Run the program on a node of this command."""
    if launch.detach:
        raise InvalidArgument("--detach leaves a program on a running node: name it with --url")
    config, code = wanted.config(), named_program(program, wanted.sandbox)
    if isinstance(code, Inferlet):
        require_values(given, code.parameters)
    start = partial(_run_embedded, config, code, given, launch)
    _follow(start, program, launch.stream)


def _follow(start: Callable[[Show], Coroutine[Any, Any, Any]], program: str, stream: bool) -> None:
    """Show the messages of ``program``, which ``start`` launches, until its end."""
    with status_of_end(), own_places(program), shown(stream) as show:
        result = asyncio.run(start(show))
    show.print_result(result)


def _launch(node: NodeClient, request: dict[str, Any], program: str) -> str:
    """Start the program, whose name or code is in ``request``, and return its id."""
    is_named = "program" in request
    telling = waiting(f"{program} is launched") if is_named else sending(node, program)
    with status_of_end(), own_places(program), telling:
        return str(node.launch(request)["id"])


async def _run_embedded(
    config: NodeConfig,
    program: Inferlet | bytes,
    given: GivenArguments,
    launch: LaunchOptions,
    show: Show,
) -> Any:
    """Run ``program`` in this process: a native program, or code for the sandbox."""
    node = Node(config)
    with errors_of_starting_raised_only(), loading_progress() as progress:
        await node.start(progress)
    try:
        chosen = await node.inspect(program) if isinstance(program, bytes) else program
        if isinstance(chosen, GuestProgram):
            require_values(given, chosen.manifest.parameters)
        handle = node.launch(
            chosen, given.args, tenant=DEFAULT_TENANT, named=given.named, seed=launch.seed
        )
        return await converse(EmbeddedProgram(handle), show, _lines(launch.interactive))
    finally:
        await node.stop()


async def _run_remote(node: NodeClient, public_id: str, interactive: bool, show: Show) -> Any:
    try:
        async with Attachment(node.url, node.headers, public_id) as program:
            return await converse(program, show, _lines(interactive))
    except asyncio.CancelledError:  # Ctrl-C, before it could be asked to end
        with suppress(QuireError):
            node.terminate(public_id)
        raise


class EmbeddedProgram:
    """A program on a node of this process, with the interface that ``conversation`` needs."""

    def __init__(self, handle: ProgramHandle) -> None:
        self._handle = handle

    async def messages(self) -> AsyncIterator[str]:
        attachment = self._handle.attach()
        try:
            async for message in attachment:
                yield message.text
        finally:
            attachment.close()

    async def send(self, message: str) -> None:
        await self._handle.send(message)

    async def end_input(self) -> None:
        self._handle.signal("end_of_input")

    async def cancel(self) -> None:
        self._handle.signal("cancel")

    async def result(self) -> Any:
        return await self._handle.result()


def _lines(interactive: bool) -> AsyncIterator[str] | None:
    return read_lines(sys.stdin) if interactive else None


def _listed(node: NodeClient) -> list[catalogue.CatalogueRow]:
    """Return the library of a running node, which may be of another release."""
    with node:
        programs = node.library()
    return [catalogue.CatalogueRow(p["theme"], p["name"], p["summary"]) for p in programs]


def _help(program: str, node: NodeClient | None) -> None:
    """Show the parameters of ``program``: as a running node knows it, else of this installation.

    Raises:
        InvalidArgument: there is no such program, or its code cannot be loaded.
    """
    if node is not None:
        with node:
            known = _known_there(node, program)
        if known is not None:
            show_help(program, known.description, known.parameters, restartable=known.restartable)
            return
    found = program_here(program) or (library.find(program) if node is None else None)
    if found is None:
        raise InvalidArgument(
            f"the node knows no program {program!r}: push the file first (quire push FILE), then "
            "ask for the help of its name"
        )
    show_help(program, found.description, found.parameters, restartable=found.restartable)


class _KnownProgram(msgspec.Struct, frozen=True):
    """What a running node says of a program that it knows by name."""

    name: str
    description: str
    parameters: list[Parameter] | None
    restartable: bool


def _known_there(node: NodeClient, program: str) -> _KnownProgram | None:
    """Return what ``node`` says of ``program``; None if it does not know the name."""
    every = [*reversed(node.uploads()), *node.library()]
    known = {one["name"]: one for one in every}
    return msgspec.convert(known[program], _KnownProgram) if program in known else None

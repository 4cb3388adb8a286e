"""``quire profile``: measures what messages cost on a real engine, for ``quire sim --profile``, and
how many texts an encoder should take at once, for workflows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from quire import __version__
from quire.cli.configuration import encoder_configs, engine_configs
from quire.cli.console import messages, output
from quire.cli.loading import loading_progress
from quire.cli.log_output import configure_logging, errors_of_starting_raised_only
from quire.cli.machine import processor_name
from quire.cli.options import shared as o
from quire.cli.options.groups import with_groups
from quire.cli.profile.encoders import encoder_times
from quire.cli.profile.engines import Round, play, rounds
from quire.cli.recorded_logs import read_times
from quire.cli.written_files import check_target, write_target
from quire.core.config import NodeConfig
from quire.core.errors import InvalidArgument
from quire.core.scratch import ScratchDirectory
from quire.node import Node
from quire.programs.workflow.engines.engine import Profile
from quire.programs.workflow.template.profiles import EncoderProfile, encode_encoder_profile
from quire.simulation.message_times import MessageTimes
from quire.simulation.profile import EngineProfile, encode_profile, fit


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """All options, in the order of ``quire profile --help``."""

    model: Annotated[
        str | None,
        typer.Argument(
            help="Directory or hub id of a model [default: quire-mini].", metavar="MODEL"
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The file [default: MODEL.profile.json]."
        ),
    ] = None
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="[NAME=]SOURCE",
            help="Measure an embedding model or cross-encoder.",
        ),
    ] = None
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Use the batch messages of an event log ('quire serve --record') instead of "
            "measuring.",
        ),
    ] = None
    log_level: o.LogLevel = "warning"

    def check(self) -> None:
        """Check that the options fit together.

        Raises:
            InvalidArgument: two things are to be measured.
            ConfigError: the profile could not be written.
        """
        if self.log is not None and self.model is not None:
            raise InvalidArgument(
                f"--log {self.log} beside the model {self.model}: give one of them"
            )
        if self.encoder is not None and (self.model, self.log) != (None, None):
            beside = f"--log {self.log}" if self.model is None else f"the model {self.model}"
            raise InvalidArgument(f"--encoder {self.encoder} beside {beside}: give one of them")
        check_target(self.output)


@with_groups
def profile(options: ProfileOptions) -> None:
    """Measure what an engine's batches cost, for --profile of 'serve', 'workflow' and 'sim'.

    Starts a node for the model and sends it 1, 2, 4, ... requests at a time, up to the number that
    the engine runs at once, with short and long prompts. This takes minutes; run nothing else on
    the machine meanwhile. The costs of steps, rows, prompt tokens, context tokens and moved blocks
    are fitted by least squares to the time that the engine reports for each message. The time
    between messages, in control and in transport, is fitted by messages and commands. With --log
    the costs are fitted to the messages of an event log: those of your own load, swaps included.

    With --encoder the node has only that encoder, and 1, 2, 4, ... texts are encoded at a time,
    until a doubling gives no more texts per second. 'quire serve --profile' and 'quire workflow'
    read both kinds of file; workflows divide batches at the largest size that was still a gain.

    Examples:

        quire profile ~/models/Qwen3-0.6B -o qwen.json

        quire profile --log events.log -o mine.json

        quire sim --profile qwen.json --workload sharegpt --load 0.8

        quire profile --encoder ~/models/minilm

        quire serve --encoder ~/models/minilm --profile minilm.profile.json
    """
    configure_logging(options.log_level, log_requests=False)
    options.check()
    if options.encoder is not None:
        _profile_encoder(options.encoder, options.output)
        return
    times = _measured(options.model) if options.log is None else read_times(options.log)
    assert times.info is not None
    date = datetime.now(UTC).isoformat(timespec="seconds")
    machine = processor_name()
    found = fit(times.samples, times.info, machine=machine, date=date, release=__version__)
    target = options.output or named_after(found.model)
    write_target(target, encode_profile(found))
    _show(found, target)


def named_after(model: str) -> Path:
    """Return the file for a model; its name may have a slash, as hub ids have."""
    return Path(f"{model.replace('/', '-')}.profile.json")


def _measured(model: str | None) -> MessageTimes:
    """Return the message times of an engine that is started for the measurement."""
    engines = engine_configs([] if model is None else [model], None)
    with ScratchDirectory("profile") as folder:
        path = folder.path / "events.log"
        asyncio.run(_measure(NodeConfig(engines, record_path=path)))
        return read_times(path)


async def _measure(config: NodeConfig) -> None:
    node = Node(config)
    with errors_of_starting_raised_only(), loading_progress() as progress:
        await node.start(progress)
    try:
        await measure(node)
    finally:
        await node.stop()


async def measure(node: Node) -> None:
    """Play all rounds that fit the engine of ``node``, with a line on stderr for each."""
    [served] = node.models()
    info = served.info
    num_slots = info.pool.page_size * info.pool.groups[0].num_blocks
    wanted = list(rounds(info.pool.max_sequences, num_slots, info.max_model_len))
    console = messages()

    def tell(number: int, one: Round) -> None:
        words = f"{one.num_requests} requests with prompts of {one.num_prompt} tokens"
        console.print(f"{number + 1} of {len(wanted)}: {words}")

    await play(node, wanted, tell)


def _profile_encoder(encoder: str, out: Path | None) -> None:
    configs = encoder_configs([encoder])
    found = asyncio.run(_measure_encoder(NodeConfig((), encoders=configs)))
    target = out or named_after(found.model)
    write_target(target, encode_encoder_profile(found))
    output().print(
        f"{found.model} does {found.max_efficient_batch} texts of {found.num_tokens} tokens at "
        f"once well: twice as many give no more per second\nwritten to {target}"
    )


async def _measure_encoder(config: NodeConfig) -> EncoderProfile:
    node = Node(config)
    with errors_of_starting_raised_only(), loading_progress() as progress:
        await node.start(progress)
    try:
        return await measure_encoder(node)
    finally:
        await node.stop()


async def measure_encoder(node: Node) -> EncoderProfile:
    """Return the profile of the node's only encoder; print a line on stderr for each size."""
    [encoder] = node.encoders()
    console = messages()

    def tell(num: int, rate: float) -> None:
        console.print(f"{num} at once: {rate:.1f} texts per second")

    num_tokens, times = await encoder_times(node, encoder, tell)
    best = Profile.of(times).max_efficient_batch
    assert best is not None, "times were measured"
    return EncoderProfile(
        model=encoder.name,
        kind=encoder.info.kind,
        machine=processor_name(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        release=__version__,
        num_tokens=num_tokens,
        times=times,
        max_efficient_batch=best,
    )


def _show(found: EngineProfile, target: Path) -> None:
    console = output()
    for name, seconds in found.cost.items():
        console.print(f"{name:16} {1e6 * seconds:12.2f} us")
    errors = found.errors
    console.print(
        f"{found.num_messages} messages of {found.model}; the fit is off by "
        f"{100 * errors.mean:.1f} % (mean), {100 * errors.p95:.1f} % (P95), "
        f"{100 * errors.total:+.1f} % in all"
    )
    console.print(f"written to {target}")
    if advice := errors.advice():
        messages().print(f"warning: {advice}")

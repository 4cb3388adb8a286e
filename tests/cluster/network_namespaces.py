"""Network namespaces as machines: each has an address and a cable of its own to one switch.

A cable that is pulled out loses packets and says nothing, as that of a lost machine does; a relay
that is cut resets connections, which everybody notices. Needs root and ``ip`` (iproute2).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from secrets import randbelow

_NETWORK = "198.18.{}"
"""Of the range that is kept for tests of networks (RFC 2544), so nobody's."""

_DELAY = ("netem", "delay", "10ms", "rate", "200mbit")
_RATE = ("tbf", "rate", "200mbit", "burst", "64kb", "latency", "100ms")
"""Where the kernel has no ``netem``."""


class Refused(Exception):
    """The system has refused a step; the message has its words."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One namespace. ``prefix`` comes before a command that runs in it."""

    name: str
    address: str
    cable: str

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)

    def pull(self) -> None:
        """The cable out of the switch: packets to and from it are lost."""
        _run("ip", "link", "set", self.cable, "down")

    def plug(self) -> None:
        _run("ip", "link", "set", self.cable, "up")

    def move_away(self) -> str:
        """Make its cable long: a delay of packets, or at least a rate; returns which."""
        try:
            _run("tc", "qdisc", "add", "dev", self.cable, "root", *_DELAY)
        except Refused:
            _run("tc", "qdisc", "add", "dev", self.cable, "root", *_RATE)
            return "rate"
        return "delay"


@contextmanager
def machines(num: int) -> Iterator[Sequence[Machine]]:
    """``num`` machines and this one at one switch.

    Raises:
        Refused: namespaces cannot be made here.
    """
    if os.geteuid():
        raise Refused("only root makes network namespaces")
    tag, network = f"q{os.getpid() % 100_000}", _NETWORK.format(randbelow(256))
    switch = f"{tag}s"
    with ExitStack() as stack:
        _made(stack, ("ip", "link"), switch, "type", "bridge")
        _run("ip", "address", "add", f"{network}.1/24", "dev", switch)
        _run("ip", "link", "set", switch, "up")
        made = []
        for number in range(num):
            machine = Machine(f"{tag}n{number}", f"{network}.{10 + number}", f"{tag}c{number}")
            _made(stack, ("ip", "netns"), machine.name)
            inside = ("ip", "-n", machine.name)
            far = ("type", "veth", "peer", "name", "eth0", "netns", machine.name)
            _run("ip", "link", "add", machine.cable, *far)  # goes with its namespace
            _run("ip", "link", "set", machine.cable, "master", switch, "up")
            _run(*inside, "address", "add", f"{machine.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run(*inside, "link", "set", device, "up")
            made.append(machine)
        yield made


def _made(stack: ExitStack, kind: tuple[str, str], name: str, *what: str) -> None:
    """Make a thing of ``kind``; it is removed at the end."""
    _run(*kind, "add", name, *what)
    stack.callback(_run, *kind, "delete", name)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError as exc:
        raise Refused(f"{command[0]} is not installed") from exc
    if done.returncode:
        raise Refused(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")

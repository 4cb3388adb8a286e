"""Reads ``cluster.yaml`` into a checked ``ClusterSpec``.

Owns the names of its keys, and the checks across one file. Everything that can be refused before
anything is started is refused here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from quire.cluster.deployment.options import CommandOptions
from quire.cluster.deployment.section import Section, refuse
from quire.cluster.deployment.spec import (
    NUM_HEAD_PORTS,
    ClusterSpec,
    KeyFiles,
    Listens,
    OtherRay,
    OwnHead,
    Placement,
    ProcessGroup,
    Resources,
    Scaling,
)
from quire.cluster.deployment.yaml_file import read_yaml
from quire.core.config import ServerConfig
from quire.core.errors import ConfigError

_CLUSTER = ("name", "nodes", "routers", "ray", "keys", "listen", "ready_timeout")
_GROUP = ("port", "count", "cpus", "gpus", "resources", "placement", "environment", "options")
_NODES = ("name", "models", "autoscale", *_GROUP)
_AUTOSCALE = ("min", "max", "requests", "up_after", "down_after")
_ROUTERS = ("strategy", "strategy_options", *_GROUP)
_OF_ONE = ("data-dir", "record")
"""Options whose value no two processes may share."""

_MAX_PROCESSES = 1000
_MAX_AT_OWN_HEAD = 80
"""The most processes: each has a keeper, which takes one of the ports of Ray's workers."""

_ROUTER_CPUS = 0.1

_RESOURCE = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,62}")
_OWN_KEYS = {
    "CPU": "cpus instead",
    "GPU": "gpus instead",
    "memory": "nothing: processes are not placed by memory",
    "object_store_memory": "nothing: processes keep nothing in Ray's object store",
}
"""Names of Ray's own resources, each with what to write instead."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The options of the two commands that a cluster runs."""

    serve: CommandOptions | None
    router: CommandOptions | None


UNREAD = Commands(None, None)
"""Options are neither read nor checked: for what shows or ends the processes that run. These have
the options with which they were started, whatever the file says now."""


def read_cluster(path: Path, commands: Commands) -> ClusterSpec:
    """Return the cluster that the file describes. With ``UNREAD``, groups have no arguments.

    Raises:
        ConfigError: the file cannot be read, or something in it is not right.
    """
    content = read_yaml(path)
    try:
        return _cluster(content, path.absolute().parent, commands)
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc.message}") from exc


def _cluster(content: Any, folder: Path, commands: Commands) -> ClusterSpec:
    file = Section(content, "", _CLUSTER)
    groups = file.required("nodes", "write a list of groups of nodes")
    if not isinstance(groups, list) or not groups:
        raise refuse("nodes", groups, "write a list of at least one group")
    ray = _ray(file.raw("ray", {}), folder)
    default = "loopback" if isinstance(ray, OwnHead) else "machine"
    cluster = ClusterSpec(
        name=file.name("name"),
        folder=folder,
        nodes=tuple(_nodes(one, f"nodes[{n}]", commands) for n, one in enumerate(groups)),
        routers=_routers(file.required("routers", "write a mapping with a port"), commands),
        ray=ray,
        keys=_keys(file.raw("keys", {}), folder),
        listens=cast(Listens, file.choice("listen", default, get_args(Listens))),
        ready_timeout_s=file.number("ready_timeout", 600.0, 1.0, 86_400.0),
    )
    _check_names(cluster)
    _check_ports(cluster)
    _check_machines(cluster)
    if commands is not UNREAD:  # without arguments, nobody sees who asks for keys
        _check_reach(cluster)
    return cluster


def _nodes(content: Any, place: str, commands: Commands) -> ProcessGroup:
    section = Section(content, place, _NODES)
    models = section.texts("models")
    options = section.mapping("options")
    arguments = (*_options(section, commands.serve), "--", *models)
    name = section.name("name", "node")
    scaling = _scaling(section)
    group = _group(section, name, arguments, commands.serve, cpus=1.0, scaling=scaling)
    ranks = 1 if commands.serve is None else int(options.get("tensor-parallel", 1))
    if 0 < group.resources.gpus < ranks:
        raise ConfigError(
            f"{place}: an engine of {ranks} ranks needs as many GPUs of one machine, and gpus is "
            f"{group.resources.gpus:g}: raise it, or lower options.tensor-parallel"
        )
    return group


def _routers(content: Any, commands: Commands) -> ProcessGroup:
    section = Section(content, "routers", _ROUTERS)
    arguments = list(_options(section, commands.router))
    strategy = section.text("strategy")
    if strategy is not None:
        arguments.append(f"--strategy={strategy}")
    for name, value in section.mapping("strategy_options").items():
        text = value if isinstance(value, str) else json.dumps(value)
        arguments.append(f"--strategy-option={name}={text}")
    return _group(section, "router", arguments, commands.router, cpus=_ROUTER_CPUS)


def _options(section: Section, command: CommandOptions | None) -> Sequence[str]:
    options = section.mapping("options")
    return () if command is None else command.arguments(options, section.place("options"))


def _group(
    section: Section,
    name: str,
    arguments: Sequence[str],
    command: CommandOptions | None,
    *,
    cpus: float,
    scaling: Scaling | None = None,
) -> ProcessGroup:
    if scaling is None:
        count = most = section.whole("count", 1, 1, _MAX_PROCESSES)
    else:
        count = section.whole("count", scaling.least, scaling.least, scaling.most)
        most = scaling.most
    environment = section.mapping("environment")
    for key, value in environment.items():
        if not isinstance(value, str) or not key.isidentifier():
            raise refuse(f"{section.place('environment')}.{key}", value, "write a text")
    try:
        if command is not None:
            command.check(arguments)
    except ConfigError as exc:
        raise ConfigError(f"{section.place('options')}: {exc.message}") from exc
    options = {} if command is None else section.mapping("options")
    for option in _OF_ONE:
        if most > 1 and option in options and "{name}" not in str(options[option]):
            raise ConfigError(
                f"{section.place('options')}.{option} would be shared by {name}-0, {name}-1, ...: "
                "put {name} into it"
            )
    return ProcessGroup(
        name=name,
        count=count,
        port=section.whole("port", 0, 1, 65_535),
        arguments=() if command is None else tuple(arguments),
        resources=Resources(
            section.number("cpus", cpus, 0.01, 4096.0),
            section.number("gpus", 0.0, 0.0, 1024.0),
            _named_resources(section),
        ),
        placement=cast(Placement, section.choice("placement", "spread", get_args(Placement))),
        environment=dict(environment),
        drain_s=float(options.get("drain-timeout", ServerConfig().drain_timeout_s)),
        scaling=scaling,
    )


def _named_resources(group: Section) -> dict[str, float]:
    place = group.place("resources")
    found = {}
    for name, amount in group.mapping("resources").items():
        if name in _OWN_KEYS:
            raise ConfigError(f"{place}.{name}: write {_OWN_KEYS[name]}")
        if not _RESOURCE.fullmatch(name):
            raise ConfigError(
                f"{place} has the name {name!r}: write letters, digits, '_', '-', '.' and ':', a "
                "letter first, at most 63"
            )
        if type(amount) not in (int, float) or not 0.0 < amount <= 1e6:
            raise refuse(f"{place}.{name}", amount, "write a number above 0, at most 1e6")
        found[name] = float(amount)
    return found


def _scaling(group: Section) -> Scaling | None:
    """Read how a group grows and shrinks; ``None`` if it does not. Its ``count`` is then the
    initial one."""
    if not group.has("autoscale"):
        return None
    section = Section(group.raw("autoscale"), group.place("autoscale"), _AUTOSCALE)
    section.required("max", "write the most nodes that the group may have")
    least = section.whole("min", 1, 1, _MAX_PROCESSES)
    default = Scaling(1, 1)
    return Scaling(
        least=least,
        most=section.whole("max", least, least, _MAX_PROCESSES),
        requests=section.number("requests", default.requests, 0.1, 100_000.0),
        up_after_s=section.number("up_after", default.up_after_s, 0.0, 86_400.0),
        down_after_s=section.number("down_after", default.down_after_s, 0.0, 86_400.0),
    )


def _ray(content: Any, folder: Path) -> OwnHead | OtherRay:
    own = ("port", "cpus", "gpus", "object_store_bytes")
    other = ("address", "token_file")
    section = Section(content, "ray", (*other, *own))
    address = section.text("address")
    if address is None:
        if section.has("token_file"):
            raise ConfigError("ray.token_file is of a Ray that runs already: write ray.address too")
        return OwnHead(
            port=section.whole("port", OwnHead().port, 1024, 65_535 - NUM_HEAD_PORTS),
            cpus=section.whole("cpus", 0, 1, 65_536) if section.has("cpus") else None,
            gpus=section.whole("gpus", 0, 0, 1024),
            object_store_bytes=section.whole("object_store_bytes", 100 << 20, 80 << 20, 1 << 40),
        )
    for key in own:
        if section.has(key):
            raise ConfigError(
                f"ray.{key} is of a Ray that 'quire up' starts: leave it out, or ray.address"
            )
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal():
        raise refuse("ray.address", address, "write HOST:PORT of a Ray head")
    return OtherRay(address, _path(section, "token_file", folder))


def _keys(content: Any, folder: Path) -> KeyFiles:
    section = Section(content, "keys", ("cluster", "admin"))
    return KeyFiles(_path(section, "cluster", folder), _path(section, "admin", folder))


def _path(section: Section, key: str, folder: Path) -> Path | None:
    text = section.text(key)
    return None if text is None else folder / Path(text).expanduser()


def _check_names(cluster: ClusterSpec) -> None:
    names = [group.name for group in cluster.nodes]
    for name in names:
        if names.count(name) > 1 or name == cluster.routers.name:
            raise ConfigError(f"two groups have the name {name!r}: name each group once")


def _check_ports(cluster: ClusterSpec) -> None:
    """Any two processes may be on one machine, so no port may occur twice."""
    taken: list[tuple[str, range]] = []
    if isinstance(cluster.ray, OwnHead):
        most = sum(len(group.ports) for group in (*cluster.nodes, cluster.routers))
        if most > _MAX_AT_OWN_HEAD:
            raise ConfigError(
                f"{most} processes: a Ray that 'quire up' starts keeps at most {_MAX_AT_OWN_HEAD}; "
                "write ray.address of one that runs"
            )
        taken.append(("ray", range(cluster.ray.port, cluster.ray.port + NUM_HEAD_PORTS)))
    for group in (*cluster.nodes, cluster.routers):
        ports = group.ports
        if ports[-1] > 65_535:
            raise ConfigError(f"{group.name}: {len(ports)} ports from {group.port} on end at 65535")
        for name, others in taken:
            if ports[0] <= others[-1] and others[0] <= ports[-1]:
                raise ConfigError(
                    f"{group.name} has the ports {_span(ports)} and {name} {_span(others)}: move "
                    "one of them, as both may be on one machine"
                )
        taken.append((group.name, ports))


def _check_machines(cluster: ClusterSpec) -> None:
    for group in (*cluster.nodes, cluster.routers):
        if group.resources.named and isinstance(cluster.ray, OwnHead):
            raise ConfigError(
                f"{group.name} needs {', '.join(group.resources.named)}: machines of a Ray that "
                "'quire up' starts have no resources by name; write ray.address of one that runs"
            )


def _check_reach(cluster: ClusterSpec) -> None:
    """Check that what listens for other machines asks for keys, unless the file allows it not
    to."""
    if cluster.listens == "loopback":
        if isinstance(cluster.ray, OtherRay) and not cluster.ray.address.startswith("127."):
            raise ConfigError(
                "with listen: loopback, nodes on other machines of ray.address are not reached: "
                "leave it out"
            )
        return
    for group in (*cluster.nodes, cluster.routers):
        if not any(one.startswith(("--api-keys-file=", "--no-auth")) for one in group.arguments):
            raise ConfigError(
                f"{group.name}: other machines reach it, so it needs options.api-keys-file, or "
                "options.no-auth: true where all who reach it may use it"
            )


def _span(ports: range) -> str:
    return str(ports[0]) if len(ports) == 1 else f"{ports[0]} to {ports[-1]}"

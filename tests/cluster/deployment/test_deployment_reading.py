"""``cluster.yaml``: what it may say, and how it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.cluster.deployment.options import CommandOptions
from quire.cluster.deployment.reading import UNREAD, Commands, read_cluster
from quire.cluster.deployment.spec import ClusterSpec, OtherRay, OwnHead, Resources, Scaling
from quire.core.errors import ConfigError

SMALL = """\
name: small
nodes:
  - port: 8101
routers:
  port: 8000
"""


def _check(arguments: object) -> None:
    if "--max-sequences=none" in str(arguments):
        raise ConfigError("max-sequences must be a number")


COMMANDS = Commands(
    CommandOptions(
        "serve",
        {
            "max-sequences": "value",
            "log-requests": "flag",
            "allow-upload": "flag",
            "no-auth": "flag",
            "adapter": "values",
            "api-keys-file": "value",
            "data-dir": "value",
            "drain-timeout": "value",
            "tensor-parallel": "value",
            "port": "value",
        },
        {"log-requests": "no-log-requests"},
        _check,
        {"port": "the cluster decides it"},
    ),
    CommandOptions("router", {"no-auth": "flag", "resume": "flag"}, {}, _check),
)


def read(tmp_path: Path, text: str) -> ClusterSpec:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    return read_cluster(file, COMMANDS)


def test_what_shows_or_ends_processes_reads_no_options(tmp_path: Path) -> None:
    """Those that run have options of the file as it was, or of an earlier release."""
    options = "    options: {no-such: 1, drain-timeout: soon}\n"
    text = SMALL.replace("routers:\n", f"{options}routers:\n")
    with pytest.raises(ConfigError, match="no such option"):
        read(tmp_path, text)
    cluster = read_cluster(tmp_path / "cluster.yaml", UNREAD)
    assert (cluster.nodes[0].name, cluster.nodes[0].arguments) == ("node", ())
    assert cluster.routers.arguments == ()


def test_what_shows_or_ends_processes_asks_for_no_keys_of_clients(tmp_path: Path) -> None:
    """Those options are not read, and nothing is started that listens."""
    text = SMALL + 'ray: {address: "10.0.0.1:6379"}\n'
    with pytest.raises(ConfigError, match="so it needs options"):
        read(tmp_path, text)
    assert read_cluster(tmp_path / "cluster.yaml", UNREAD).listens == "machine"


def test_little_needs_to_be_said(tmp_path: Path) -> None:
    cluster = read(tmp_path, SMALL)
    (nodes,) = cluster.nodes
    assert (nodes.name, nodes.count, nodes.port, nodes.placement) == ("node", 1, 8101, "spread")
    assert (nodes.resources, nodes.arguments) == (Resources(1.0, 0.0), ("--",))
    assert (cluster.routers.name, cluster.routers.count) == ("router", 1)
    assert cluster.ray == OwnHead()
    assert (cluster.listens, cluster.folder) == ("loopback", tmp_path)


def test_a_group_may_grow_and_shrink(tmp_path: Path) -> None:
    text = """\
name: elastic
nodes:
  - port: 8101
    autoscale: {max: 4, requests: 6, up_after: 5, down_after: 60}
  - {name: begun, port: 8201, count: 2, autoscale: {min: 2, max: 3}}
routers:
  port: 8000
"""
    first, begun = read(tmp_path, text).nodes
    assert (first.count, first.scaling) == (1, Scaling(1, 4, 6.0, 5.0, 60.0))
    assert first.ports == range(8101, 8105)
    assert (begun.count, begun.scaling) == (2, Scaling(2, 3))


@pytest.mark.parametrize(
    ("group", "told"),
    [
        ("port: 8101, autoscale: 4", r"nodes\[0\].autoscale is 4: write a mapping"),
        ("port: 8101, autoscale: {min: 2}", r"autoscale.max is missing"),
        ("port: 8101, autoscale: {min: 3, max: 2}", r"autoscale.max is 2: .* from 3"),
        ("port: 8101, autoscale: {max: 2, requests: 0}", r"autoscale.requests is 0"),
        ("port: 8101, autoscale: {max: 2, most: 3}", r"autoscale has no key 'most'"),
        ("port: 8101, count: 3, autoscale: {max: 2}", r"nodes\[0\].count is 3: .* from 1 to 2"),
        ("port: 7999, autoscale: {max: 2}", r"router has the ports 8000 and node 7999 to 8000"),
        (
            "port: 8101, autoscale: {max: 2}, options: {data-dir: data}",
            r"data-dir would be shared",
        ),
    ],
)
def test_wrong_bounds_are_refused(tmp_path: Path, group: str, told: str) -> None:
    text = f"name: elastic\nnodes:\n  - {{{group}}}\nrouters:\n  port: 8000\n"
    with pytest.raises(ConfigError, match=told):
        read(tmp_path, text)


def test_everything_has_its_place(tmp_path: Path) -> None:
    cluster = read(
        tmp_path,
        """\
name: large
nodes:
  - name: chat
    count: 2
    port: 8101
    cpus: 4
    gpus: 2
    resources: {"accelerator_type:A100": 0.01, fast-disk: 1}
    placement: pack
    models: [big=org/model]
    environment: {HF_HOME: /models}
    options:
      tensor-parallel: 2
      log-requests: false
      allow-upload: false
      no-auth: true
      adapter: [a=x, b=y]
      data-dir: "data/{name}"
      drain-timeout: 5
  - {name: small, port: 8201, options: {api-keys-file: keys.toml}}
routers:
  count: 2
  port: 8000
  strategy: mine.py:route
  strategy_options: {max_extra: 4, mode: fast}
  options: {resume: true, no-auth: true}
ray: {address: "10.0.0.1:6379", token_file: token}
keys: {cluster: cluster.key, admin: /etc/admin.key}
ready_timeout: 30
""",
    )
    chat, small = cluster.nodes
    assert chat.arguments == (
        *("--tensor-parallel=2", "--no-log-requests", "--no-auth", "--adapter=a=x"),
        *("--adapter=b=y", "--data-dir=data/{name}", "--drain-timeout=5", "--", "big=org/model"),
    )
    needs = Resources(4.0, 2.0, {"accelerator_type:A100": 0.01, "fast-disk": 1.0})
    assert (chat.resources, chat.placement, chat.drain_s) == (needs, "pack", 5.0)
    assert small.resources == Resources()
    assert chat.ports == range(8101, 8103)
    assert chat.environment == {"HF_HOME": "/models"}
    assert (small.count, small.drain_s) == (1, 30.0)
    assert cluster.routers.arguments == (
        *("--resume", "--no-auth", "--strategy=mine.py:route"),
        *("--strategy-option=max_extra=4", "--strategy-option=mode=fast"),
    )
    assert cluster.ray == OtherRay("10.0.0.1:6379", tmp_path / "token")
    assert cluster.keys.cluster == tmp_path / "cluster.key"
    assert cluster.keys.admin == Path("/etc/admin.key")
    assert (cluster.listens, cluster.ready_timeout_s) == ("machine", 30.0)


def edited(old: str, new: str) -> str:
    assert old in SMALL
    return SMALL.replace(old, new)


PORT = "  - port: 8101\n"
AT_MACHINE = edited("name: small\n", "name: small\nlisten: machine\n")

REFUSED = {
    "no mapping": ("[]", "the file is []: write a mapping with name, nodes"),
    "not YAML": ("name: x\n  nodes: [", "mapping values are not allowed here at line 2, column 8"),
    "a tag": ("name: !!python/object:os.x {}", "is not valid YAML"),
    "an alias": ("a: &a [1]\nb: *a", "aliases are not read (line 2)"),
    "a key twice": (SMALL + "name: other\n", "the key 'name' occurs twice (line 6)"),
    "merged keys": (SMALL + "keys: {<<: {admin: x}, admin: y}\n", "'<<' is not read (line 6)"),
    "ranks as a text": (
        edited(PORT, PORT + "    gpus: 1\n    options: {tensor-parallel: '2'}\n"),
        "an engine of 2 ranks needs as many GPUs",
    ),
    "an unknown key": (SMALL + "node: 1\n", "the file has no key 'node': there are name, nodes"),
    "no name": (edited("name: small\n", ""), "name is missing"),
    "a bad name": (edited("name: small", "name: Small"), "name is 'Small': write lower-case"),
    "no nodes": (edited(PORT, "").replace("nodes:", "nodes: []"), "at least one group"),
    "nodes without a port": (edited(PORT, "  - count: 2\n"), "nodes[0].port is 0"),
    "no routers": (edited("routers:\n  port: 8000\n", ""), "routers is missing"),
    "an unknown key of a group": (edited(PORT, PORT + "    gpu: 1\n"), "nodes[0] has no key 'gpu'"),
    "a count": (edited(PORT, PORT + "    count: 0\n"), "nodes[0].count is 0: write a whole number"),
    "a boolean count": (edited(PORT, PORT + "    count: true\n"), "nodes[0].count is True"),
    "cpus": (edited(PORT, PORT + "    cpus: .nan\n"), "nodes[0].cpus is nan"),
    "GPUs by Ray's name": (
        edited(PORT, PORT + "    resources: {GPU: 1}\n"),
        "nodes[0].resources.GPU: write gpus instead",
    ),
    "an amount": (
        edited(PORT, PORT + "    resources: {A100: 0}\n"),
        "nodes[0].resources.A100 is 0: write a number above 0",
    ),
    "an endless amount": (
        edited(PORT, PORT + "    resources: {A100: .inf}\n"),
        "nodes[0].resources.A100 is inf",
    ),
    "a name of a resource": (
        edited(PORT, PORT + "    resources: {A/100: 1}\n"),
        "nodes[0].resources has the name 'A/100'",
    ),
    "resources by name on one machine": (
        edited(PORT, PORT + "    resources: {A100: 1}\n"),
        "node needs A100: machines of a Ray that 'quire up' starts have no resources by name",
    ),
    "a placement": (edited(PORT, PORT + "    placement: near\n"), "one of spread, pack"),
    "models": (edited(PORT, PORT + "    models: [1]\n"), "nodes[0].models is [1]"),
    "an environment": (
        edited(PORT, PORT + "    environment: {A: 1}\n"),
        "nodes[0].environment.A is 1: write a text",
    ),
    "an unknown option": (
        edited(PORT, PORT + "    options: {max-seqs: 1}\n"),
        "nodes[0].options.max-seqs: 'quire serve' has no such option: adapter, ",
    ),
    "an option of the cluster": (
        edited(PORT, PORT + "    options: {port: 1}\n"),
        "nodes[0].options.port: the cluster decides it",
    ),
    "a flag": (
        edited(PORT, PORT + "    options: {no-auth: 1}\n"),
        "nodes[0].options.no-auth is 1: write true or false",
    ),
    "a value of an option": (
        edited(PORT, PORT + "    options: {max-sequences: [1]}\n"),
        "nodes[0].options.max-sequences is [1]: write a text or a number",
    ),
    "two lines": (
        edited(PORT, PORT + '    options: {max-sequences: "a\\nb"}\n'),
        "write one printable line",
    ),
    "what the command refuses": (
        edited(PORT, PORT + "    options: {max-sequences: none}\n"),
        "nodes[0].options: max-sequences must be a number",
    ),
    "a shared folder": (
        edited(PORT, PORT + "    count: 2\n    options: {data-dir: data}\n"),
        "data-dir would be shared by node-0, node-1, ...: put {name} into it",
    ),
    "ranks without GPUs": (
        edited(PORT, PORT + "    gpus: 1\n    options: {tensor-parallel: 2}\n"),
        "an engine of 2 ranks needs as many GPUs",
    ),
    "two groups of a name": (
        edited(PORT, PORT + "  - port: 8201\n"),
        "two groups have the name 'node'",
    ),
    "a group like the routers": (
        edited(PORT, "  - {name: router, port: 8101}\n"),
        "two groups have the name 'router'",
    ),
    "ports of two groups": (
        edited(PORT, PORT + "    count: 9\n  - {name: b, port: 8109}\n"),
        "b has the ports 8109 and node 8101 to 8109",
    ),
    "ports of Ray": (edited("8101", "6510"), "node has the ports 6510 and ray 6500 to 6599"),
    "ports that do not exist": (edited("8101", "65535\n    count: 2"), "end at 65535"),
    "a port of Ray": (SMALL + "ray: {port: 80}\n", "ray.port is 80"),
    "a head of a Ray that runs": (
        SMALL + "ray: {address: 'h:1', cpus: 2}\n",
        "ray.cpus is of a Ray that 'quire up' starts",
    ),
    "a token of our own Ray": (SMALL + "ray: {token_file: t}\n", "write ray.address too"),
    "an address": (SMALL + "ray: {address: head}\n", "ray.address is 'head': write HOST:PORT"),
    "other machines without keys": (AT_MACHINE, "node: other machines reach it"),
    "other machines at loopback": (
        SMALL + "listen: loopback\nray: {address: 'head:1'}\n",
        "nodes on other machines of ray.address are not reached",
    ),
    "too many processes for our own Ray": (edited(PORT, PORT + "    count: 81\n"), "at most 80"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_right_is_refused_by_its_place(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert refused.value.message.startswith(str(tmp_path / "cluster.yaml"))
    assert reason in refused.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^there is no file .*none\.yaml: name the YAML file"):
        read_cluster(tmp_path / "none.yaml", COMMANDS)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_cluster(tmp_path, COMMANDS)


def test_a_file_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        read(tmp_path, "# " + "x" * (1 << 20))

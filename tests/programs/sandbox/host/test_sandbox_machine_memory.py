"""What memory is left, by files as Linux has them: a machine's, and that of containers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire.programs.sandbox.host.machine_memory import MachineMemory

MIB = 1 << 20
FREE = 16_000 * MIB


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine without control groups."""
    free = f"MemTotal: 24683868 kB\nMemAvailable: {FREE >> 10} kB\nCached:  1 kB\n"
    write(tmp_path, {"proc/meminfo": free})
    return tmp_path


def v2(group: str, limit: str, used: int, cache: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup{group}"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {cache}\nactive_file 7\n",
    }


def v1(group: str, limit: int, used: int, cache: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory{group}"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{used}\n",
        f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {cache}\n",
    }


def available_bytes(root: Path) -> int | None:
    return MachineMemory(root).available_bytes()


def test_without_a_container_it_is_the_machines(root: Path) -> None:
    assert available_bytes(root) == FREE


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    write(tmp_path, {"proc/meminfo": "MemTotal:       24683868 kB\n"})
    assert available_bytes(tmp_path) is None


def test_a_containers_limit_of_version_2(root: Path) -> None:
    write(root, {"proc/self/cgroup": "0::/\n", **v2("", str(2048 * MIB), 1500 * MIB)})
    assert available_bytes(root) == 548 * MIB


def test_a_containers_limit_of_version_1(root: Path) -> None:
    write(
        root,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/docker/0123\n",
            # its own group is mounted as the first: the path names nothing
            **v1("", 1024 * MIB, 1000 * MIB, cache=300 * MIB),
        },
    )
    assert available_bytes(root) == 324 * MIB


def test_pages_of_files_that_nobody_used_are_free(root: Path) -> None:
    write(root, {"proc/self/cgroup": "0::/\n", **v2("", str(2048 * MIB), 2000 * MIB, 1000 * MIB)})
    assert available_bytes(root) == 1048 * MIB


def test_the_tightest_of_nested_groups_counts(root: Path) -> None:
    write(
        root,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            **v2("/outer/inner", "max", 100 * MIB),
            **v2("/outer", str(700 * MIB), 400 * MIB),
        },
    )
    assert available_bytes(root) == 300 * MIB
    write(root, v2("/outer/inner", str(150 * MIB), 100 * MIB))
    assert available_bytes(root) == 50 * MIB


def test_what_changes_is_seen_by_who_has_asked_before(root: Path) -> None:
    write(
        root,
        {
            "proc/self/cgroup": "0::/a\n",
            **v2("/a", "max", 100 * MIB),
            **v2("/b", str(300 * MIB), 100 * MIB),
        },
    )
    memory = MachineMemory(root)
    assert memory.available_bytes() == FREE
    write(root, v2("/a", str(500 * MIB), 100 * MIB))
    assert memory.available_bytes() == 400 * MIB
    write(root, v2("/a", str(500 * MIB), 450 * MIB, cache=100 * MIB))
    assert memory.available_bytes() == 150 * MIB
    write(root, {"proc/meminfo": f"MemAvailable: {50 << 10} kB\n"})
    assert memory.available_bytes() == 50 * MIB
    write(root, {"proc/meminfo": f"MemAvailable: {FREE >> 10} kB\n"})
    write(root, {"proc/self/cgroup": "0::/b\n"})
    assert memory.available_bytes() == 200 * MIB, "the process was moved"


def test_files_are_opened_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, {"proc/self/cgroup": "0::/a\n", **v2("/a", str(500 * MIB), 100 * MIB)})
    memory = MachineMemory(root)
    assert memory.available_bytes() == 400 * MIB

    def opens(path: Path, flags: int) -> int:
        raise AssertionError(path)

    monkeypatch.setattr(os, "open", opens)
    write(root, v2("/a", str(500 * MIB), 200 * MIB))
    assert memory.available_bytes() == 300 * MIB


def test_files_are_closed(root: Path) -> None:
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("no /proc/self/fd here")
    write(root, {"proc/self/cgroup": "0::/a\n", **v2("/a", str(500 * MIB), 100 * MIB)})

    def opened() -> list[str]:
        return [name for one in folder.iterdir() if str(root) in (name := linked(one))]

    memory = MachineMemory(root)
    assert memory.available_bytes() == 400 * MIB
    assert opened()
    del memory
    assert not opened()


def linked(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except OSError:  # that of the listing itself
        return ""


def test_a_group_without_a_limit_leaves_the_machines(root: Path) -> None:
    write(
        root,
        {
            "proc/self/cgroup": "4:memory:/a\n0::/b\n",
            **v1("/a", 0x7FFFFFFFFFFFF000, 100 * MIB),
            **v2("/b", "max", 100 * MIB),
        },
    )
    assert available_bytes(root) == FREE


def test_one_over_its_limit_has_nothing_left(root: Path) -> None:
    write(root, {"proc/self/cgroup": "0::/\n", **v2("", str(100 * MIB), 120 * MIB)})
    assert available_bytes(root) == 0


@pytest.mark.parametrize("text", ["", "nonsense", "0::", "4:memory", "x:y:z\n"])
def test_what_is_no_list_of_groups_says_nothing(root: Path, text: str) -> None:
    write(root, {"proc/self/cgroup": text})
    assert available_bytes(root) == FREE

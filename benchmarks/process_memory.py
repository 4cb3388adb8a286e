"""Measures the memory of a process and all its children, as the kernel counts it (Linux).

PSS counts private pages whole and shared pages in equal parts, so that a sum over processes counts
each page once.
"""

from __future__ import annotations

from pathlib import Path


def tree(pid: int) -> list[int]:
    """Return ``pid`` and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _parent(entry)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def _parent(process: Path) -> int | None:
    try:
        # the name in brackets may contain anything, so read after it
        return int((process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return None  # it has ended


def pss_bytes(pid: int) -> int:
    """Return the proportional set size of the whole tree; 0 where the system does not report it."""
    total = 0
    for one in tree(pid):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            continue
        lines = [line.split() for line in text.splitlines() if line.startswith("Pss:")]
        total += sum(int(line[1]) for line in lines) * 1024
    return total


def available_bytes() -> int | None:
    """Return the memory that the system can provide without swapping; None where it does not report
    it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(words[1]) * 1024 for words in found), None)

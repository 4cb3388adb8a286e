"""A release whose files are replaced under a running node: what goes wrong then says so."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from sandbox_node import CHILD, needs_sandbox

from quire.core.config import SandboxConfig
from quire.core.errors import ProgramTerminated, ProtocolMismatch
from quire.node.sandbox import link as link_module
from quire.node.sandbox.changed_sources import because_of_change, changed_source
from quire.node.sandbox.link import LinkSettings, SandboxLink
from quire.programs.sandbox.messages import ErrorRecord
from quire.testing import VirtualClock


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "quire" / "core").mkdir(parents=True)
    for name in ("__init__.py", "core/wire.py", "core/notes.txt"):
        (tmp_path / "quire" / name).write_text("")
    return tmp_path / "quire"


def test_files_that_are_as_old_as_the_node_are_no_cause(package: Path) -> None:
    later_s = time.time() + 60
    assert changed_source(later_s, package) is None
    assert because_of_change(later_s, package) == ""


def test_the_youngest_is_named_with_the_remedy(package: Path) -> None:
    later_s = time.time() + 60
    os.utime(package / "core/wire.py", (later_s + 2, later_s + 2))
    os.utime(package / "__init__.py", (later_s + 1, later_s + 1))
    os.utime(package / "core/notes.txt", (later_s + 3, later_s + 3))
    assert changed_source(later_s, package) == package / "core/wire.py"
    said = because_of_change(later_s, package)
    assert "quire/core/wire.py was changed" in said
    assert "restart the node" in said


def test_a_file_with_its_old_time_was_changed_all_the_same(package: Path) -> None:
    before_s = time.time() - 60
    for path in package.rglob("*.py"):
        os.utime(path, (before_s - 1, before_s - 1))
    assert changed_source(before_s, package) is not None


class Guest:
    def __init__(self) -> None:
        self.lost: list[ErrorRecord] = []

    def on_report(self, report: object) -> None:
        pass

    def on_lost(self, error: ErrorRecord) -> None:
        self.lost.append(error)


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "because_of_change", lambda since_s: "; a.py was changed")


def link_to(mode: str, cache_dir: Path) -> SandboxLink:
    settings = LinkSettings(
        SandboxConfig(cache_dir=cache_dir), (), (sys.executable, str(CHILD), mode)
    )
    return SandboxLink("0", settings, VirtualClock())


@needs_sandbox
@pytest.mark.usefixtures("changed")
async def test_a_process_that_cannot_start_names_the_change(tmp_path: Path) -> None:
    link = link_to("old", tmp_path)
    with pytest.raises(ProtocolMismatch, match=r"a\.py was changed"):
        await link.ready()
    await link.close()


@pytest.mark.usefixtures("changed")
async def test_a_process_that_is_lost_names_the_change(tmp_path: Path) -> None:
    link, guest = link_to("serve", tmp_path), Guest()
    link.add(guest)
    link._on_lost("status 1")
    (error,) = guest.lost
    assert error.code == ProgramTerminated.code
    assert error.message.endswith("was lost (status 1); a.py was changed; launch it again")

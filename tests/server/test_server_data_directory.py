"""A data directory that nothing can be kept in is refused before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire.core.config import EngineConfig, NodeConfig, ServerConfig
from quire.core.errors import ConfigError
from quire.core.ids import ModelId
from quire.server.data_directory import check_data_directory, sole_server
from quire.server.serve import run


def test_it_is_made_and_left_empty(tmp_path: Path) -> None:
    check_data_directory(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    check_data_directory(None)


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"data directory .*file: File exists; name another"):
        check_data_directory(tmp_path / "file")


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("quire.server.data_directory.tempfile.TemporaryFile", full)
    with pytest.raises(ConfigError, match=r"No space left on device; .* make room"):
        check_data_directory(tmp_path)


def test_a_server_does_not_begin_with_it(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    engines = (EngineConfig(source="no/model", name=ModelId("m")),)
    with pytest.raises(ConfigError, match="data directory"):
        run(NodeConfig(engines), ServerConfig(data_dir=place))
    with pytest.raises(ConfigError, match="data directory"):
        run(NodeConfig(engines, data_dir=place), ServerConfig())


def test_two_servers_do_not_run_the_same_batches(tmp_path: Path) -> None:
    with sole_server(tmp_path):
        in_use = rf"in use by another server \(pid {os.getpid()}\)"
        with pytest.raises(ConfigError, match=in_use), sole_server(tmp_path):
            pytest.fail("the second has it, too")
        engines = (EngineConfig(source="no/model", name=ModelId("m")),)
        with pytest.raises(ConfigError, match="both would run the batches"):
            run(NodeConfig(engines, data_dir=tmp_path), ServerConfig(data_dir=tmp_path))
    with sole_server(tmp_path), sole_server(None), sole_server(None):
        """It is free when its server has ended, and servers that keep nothing share nothing."""


def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("quire.server.data_directory.fcntl.flock", none)
    with sole_server(tmp_path), sole_server(tmp_path):
        """Nobody can tell."""

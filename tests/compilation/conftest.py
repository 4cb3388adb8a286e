"""The small package, compiled once with the real toolchain."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_package import write_package

from quire.compilation import CompiledLibrary, Scope
from quire.compilation.building import build


@pytest.fixture
def scope(tmp_path: Path) -> Scope:
    return write_package(tmp_path / "sources")


@pytest.fixture(scope="session")
def built(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> CompiledLibrary:
    """Kept between runs and shared by test processes, because its name is derived from its
    sources."""
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    directory = tmp_path_factory.mktemp("compiled")
    if cache is not None:  # else pytest runs with -p no:cacheprovider
        directory = cache.mkdir("quire-compiled")
        directory.chmod(0o700)
    return build(write_package(tmp_path_factory.mktemp("sources")), directory)


@pytest.fixture
def directory(built: CompiledLibrary, tmp_path: Path) -> Path:
    """A cache directory for one test, with the library in it."""
    own = tmp_path / "compiled"
    own.mkdir(mode=0o700)
    for path in (built.path, built.path.with_name(f"record-{built.path.stem}.json")):
        (own / path.name).write_bytes(path.read_bytes())
        (own / path.name).chmod(0o600)
    return own

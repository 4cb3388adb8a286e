"""Files that commands write: errors that the user can act on."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.cli.written_files import check_target, write_target
from quire.core.errors import ConfigError


def test_what_cannot_be_written_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written: .*Is a directory"):
        write_target(tmp_path, "x")


def test_a_target_is_checked_before_the_work(tmp_path: Path) -> None:
    check_target(None)
    check_target(tmp_path / "new.json")
    with pytest.raises(ConfigError, match="there is no folder"):
        check_target(tmp_path / "none" / "x.json")
    with pytest.raises(ConfigError, match="is a folder: name a file in it"):
        check_target(tmp_path)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vision_checkpoints import Tower, make_llava


@pytest.fixture(scope="session")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Tower], Path]:
    made: dict[Tower, Path] = {}

    def get(tower: Tower) -> Path:
        if tower not in made:
            made[tower] = tmp_path_factory.mktemp(f"llava-{tower}")
            make_llava(tower, made[tower])
        return made[tower]

    return get

"""The locks: each extra of its own has its own, and ``make install-dev`` installs what CI tests."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_ray_and_nixl_have_locks_of_their_own() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    others = pins("requirements.lock") | pins("requirements-dev.lock")
    for extra in ("ray", "nixl"):
        own = pins(f"requirements-{extra}.lock")
        for requirement in map(Requirement, extras[extra]):
            assert requirement.specifier.contains(own[requirement.name])
            assert requirement.name not in others
            assert requirement.name not in {Requirement(one).name for one in extras["dev"]}


def test_the_tests_of_ci_have_nixl() -> None:
    install = runpy.run_path(str(ROOT / "tools" / "install.py"))
    assert "requirements-nixl.lock" in install["LOCKS"]["dev"]
    assert "requirements-nixl.lock" not in install["LOCKS"]["runtime"]

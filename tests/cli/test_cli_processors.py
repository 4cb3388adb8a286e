"""The example package of a sampling processor: installed, listed, used over HTTP, tested."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from quire.cli.server_process import server_process

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "no_repeat_ngram"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the package is installed into, without a network."""
    source = tmp_path_factory.mktemp("source") / "package"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("*.egg-info", "build"))
    installed = tmp_path_factory.mktemp("installed")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", installed, source],
        check=True,
        capture_output=True,
    )
    return installed


@pytest.fixture
def environment(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started see the package."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(target), *_python_path()]))


def _python_path() -> list[str]:
    value = os.environ.get("PYTHONPATH")
    return [value] if value else []


def test_doctor_lists_it(environment: None) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "quire.cli", "doctor", "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    torch = json.loads(ran.stdout)["torch"]
    assert "no_repeat_ngram" in torch["processors"]
    assert torch["refused_processors"] == {}


async def test_a_request_names_it(environment: None) -> None:
    """Biased to say one of two tokens for ever, no pair of them may occur twice."""
    biased = {"logit_bias": {"50": 100, "51": 90}, "temperature": 0, "max_tokens": 6}
    base = {"prompt": "Count.", "ignore_eos": True, "return_token_ids": True, **biased}
    async with (
        server_process(("quire-mini", "--num-threads", "1")) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):

        async def tokens(*processors: dict[str, object]) -> list[int]:
            answer = await client.post(
                "/v1/completions", json={**base, "processors": list(processors)}
            )
            answer.raise_for_status()
            return list(answer.json()["choices"][0]["token_ids"])

        assert await tokens() == [50] * 6
        no_pairs = await tokens({"name": "no_repeat_ngram", "params": {"size": 2}})
        assert no_pairs[:4] == [50, 50, 51, 50]
        assert no_pairs[4] not in (50, 51)
        pairs = list(pairwise(no_pairs))
        assert len(set(pairs)) == len(pairs)
        for processor, part in [
            ({"name": "nobody_has_it"}, "no processor is named 'nobody_has_it'"),
            ({"name": "no_repeat_ngram", "params": {"size": 0}}, "an integer from 1 to 64"),
        ]:
            refused = await client.post("/v1/completions", json={**base, "processors": [processor]})
            assert refused.status_code == 400
            assert part in refused.json()["error"]["message"]


def test_its_own_tests_pass(environment: None) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLE / "tests"],
        capture_output=True,
        text=True,
        cwd=EXAMPLE,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout

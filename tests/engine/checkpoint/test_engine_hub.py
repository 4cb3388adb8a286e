"""Which files of a hub repository are downloaded, and how failures are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from httpx import Request, Response
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import filter_repo_objects

from quire.core.errors import ModelNotFound
from quire.engine.checkpoint import hub

REPOSITORY = [
    "config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors.index.json",
    "model-00001-of-00002.safetensors", "1_Pooling/config.json", "pytorch_model.bin", "README.md",
    "consolidated.safetensors", "consolidated.00.safetensors", "original/params.json",
    "model.gguf", "modeling_own.py",
]  # fmt: skip


def test_weights_come_once_and_no_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken: list[str] = []

    def snapshot(hub_id: str, **patterns: Any) -> str:
        assert hub_id == "org/name"
        taken.extend(filter_repo_objects(REPOSITORY, **patterns))
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    assert hub.download("org/name") == tmp_path
    assert taken == REPOSITORY[:6]


def test_a_repository_that_cannot_be_reached_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(hub_id: str, **patterns: Any) -> str:
        raise LocalEntryNotFoundError("no network\nand more")

    monkeypatch.setattr(hub, "snapshot_download", offline)
    with pytest.raises(ModelNotFound, match=r"'org/name'.*\(no network\): check"):
        hub.download("org/name")


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (GatedRepoError, r"accept them at huggingface.co/org/name and set HF_TOKEN"),
        (RepositoryNotFoundError, r"no such repository or it is private: check the spelling"),
    ],
)
def test_what_the_hub_does_not_give_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, kind: type[HfHubHTTPError], remedy: str
) -> None:
    def refused(hub_id: str, **patterns: Any) -> str:
        request = Request("GET", "https://hub/api/models/org/name")
        raise kind("401 Client Error", response=Response(401, request=request))

    monkeypatch.setattr(hub, "snapshot_download", refused)
    with pytest.raises(ModelNotFound, match=remedy):
        hub.download("org/name")

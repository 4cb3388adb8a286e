"""The small models and their node, made once for each test process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from tiny_models import tiny_node, write_models
from transformers import LlamaForCausalLM
from transformers.utils import logging

from quire.node import Node

logging.disable_progress_bar()


@pytest.fixture(scope="session")
def tiny_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def reference(tiny_paths: dict[str, Path]) -> Callable[[str], LlamaForCausalLM]:
    """A checkpoint in transformers, attention in its plainest form."""
    loaded = {
        name: LlamaForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
        for name, path in tiny_paths.items()
    }
    return loaded.__getitem__


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tiny(tiny_paths: dict[str, Path]) -> AsyncIterator[Node]:
    node = tiny_node(tiny_paths)
    await node.start()
    yield node
    await node.stop()

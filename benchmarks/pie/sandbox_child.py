"""Runs the sandbox process of a node with a fake engine: its model has the fake tokenizer."""

from __future__ import annotations

import sys

from quire.core.config import EngineConfig
from quire.node import ModelFiles
from quire.node.sandbox import sandbox_process
from quire.testing import FakeTokenizer


def model_files(config: EngineConfig) -> ModelFiles:
    return ModelFiles(FakeTokenizer(), FakeTokenizer.chat_template)


if __name__ == "__main__":
    sys.exit(sandbox_process.main(model_files))

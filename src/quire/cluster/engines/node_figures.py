"""What a router knows of an engine without asking it: the figures that the node last reported.

Owns their names in ``Engine``. Real and virtual engines share them.
"""

from __future__ import annotations

from quire.cluster.nodes.node import RoutedNode


class EngineFigures:
    """Implements the part of ``Engine`` that strategies read; ``node`` is the router's view of
    it."""

    def __init__(self, node: RoutedNode) -> None:
        self.name = node.name
        self._node = node

    def __repr__(self) -> str:
        return f"<Engine {self.name}>"

    @property
    def node(self) -> RoutedNode:
        return self._node

    @property
    def load(self) -> int:
        return self._node.load

    @property
    def queue(self) -> int:
        return self._node.figures.num_waiting

    @property
    def num_free_blocks(self) -> int:
        return self._node.figures.num_free_blocks

    @property
    def num_blocks(self) -> int:
        return self._node.figures.num_blocks

    @property
    def epoch(self) -> int:
        return self._node.figures.epoch

    @property
    def token_bytes(self) -> int:
        return self._node.figures.token_bytes

    @property
    def prompt_token_s(self) -> float | None:
        return self._node.figures.prompt_token_s

"""Untrusted programs on this node: their processes and the connections to them."""

from quire.node.sandbox.runtime import SandboxRuntime

__all__ = ["SandboxRuntime"]

"""Untrusted programs on this node: their runtime processes, and the way there and back."""

from quire.node.sandbox.runtime import SandboxRuntime

__all__ = ["SandboxRuntime"]

"""Models that act: tools, code, other agents."""

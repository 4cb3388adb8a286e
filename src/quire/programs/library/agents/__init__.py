"""Models that act: with tools, code and other agents."""

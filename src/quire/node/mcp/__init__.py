"""MCP servers that the node runs for its programs."""

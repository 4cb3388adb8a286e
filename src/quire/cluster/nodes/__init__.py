"""Nodes as a router sees them: addresses, connections, and whether they live."""

"""Graphs of primitives: their values, their edges, and the progress of one while it runs."""

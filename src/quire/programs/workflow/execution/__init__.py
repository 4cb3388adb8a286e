"""Runs the graph of one query: dispatch, functions, graphs that grow, and what is told of it."""

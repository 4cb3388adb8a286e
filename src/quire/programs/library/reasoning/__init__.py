"""Spending more tokens on one question: trees, graphs, skeletons, votes."""

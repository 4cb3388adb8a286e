"""Techniques that spend more tokens on one question: trees, graphs, skeletons, votes."""

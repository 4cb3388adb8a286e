"""The engines of a node, and the main module of their processes."""

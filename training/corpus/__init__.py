"""Generates the training corpus from seeds, with one module per family of tasks."""

"""Seeded generators, one module per family of tasks."""

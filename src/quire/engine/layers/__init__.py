"""Layers that model families share. Plain objects with tensors; inference only."""

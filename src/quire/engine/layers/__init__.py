"""Layers that model families share. Plain objects holding tensors; inference only."""

"""Embedding models and cross-encoders: bidirectional transformers that keep nothing."""

"""Embedding models and cross-encoders: bidirectional transformers without state between batches."""

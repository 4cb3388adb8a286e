"""Encoders of the node: a process each, a bounded queue in front of it, batches to it."""

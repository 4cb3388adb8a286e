"""Which engine serves a queue."""

"""The choice of the engine that serves a queue, and of the encoder instance that runs a batch."""

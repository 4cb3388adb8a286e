"""The request as a router reads it, the node where it belongs, and its answer on the way."""

"""Requests: the body as strict JSON, who sends it, and what is logged and counted of it."""

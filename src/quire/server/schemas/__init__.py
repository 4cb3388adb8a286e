"""Request and response bodies as pydantic models: what ``/openapi.json`` is generated from.

Every integer, list, string and object is bounded here. Nothing in here runs anything.
"""

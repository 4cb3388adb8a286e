"""Request and response bodies as pydantic models, from which ``/openapi.json`` is generated.

Every integer, list, string and object is bounded here. Nothing here carries out a request.
"""

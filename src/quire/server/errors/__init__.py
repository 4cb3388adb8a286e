"""Errors as responses, and the hints in them."""

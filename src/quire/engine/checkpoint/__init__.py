"""Reads model directories and trusts nothing in them."""

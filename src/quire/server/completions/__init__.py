"""Text completions: the fields of a request, and the form of an answer."""

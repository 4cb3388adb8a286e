"""Sessions: programs whose calls come one by one from outside; what they keep between."""

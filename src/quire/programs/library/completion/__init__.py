"""Completing a text: in three lines, by hand, several ways at once."""

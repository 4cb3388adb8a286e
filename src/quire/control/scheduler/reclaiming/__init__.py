"""Whose memory is taken, and how what was lost comes back."""

"""Hosts guests of both kinds: their turns, their limits, and the templates of their instances."""

"""Guests of both kinds: who gets a turn, what bounds each and what it is made of."""

"""Tells a search server from a directory of files, by the beginning of its address."""

SERVERS = ("http://", "https://")

"""Answers: a generation as chunks, and their way to the client, whole or as events."""

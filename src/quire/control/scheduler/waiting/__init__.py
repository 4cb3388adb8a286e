"""Commands that wait and commands that run: those ready for a message, decodes and their seats."""

"""The chat API: translates messages to a prompt, tools and formats to a grammar, chunks to
messages."""

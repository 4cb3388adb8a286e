"""The chat API: messages to a prompt, tools and formats to a grammar, chunks to messages."""

"""The chat dialect: messages to a prompt, tools and formats to a grammar, chunks to messages."""

"""OpenAI's responses: items to messages, chunks to typed events, and what is stored."""

"""OpenAI's Responses API: translates items to chat messages, chunks to typed events, and stores
responses."""

"""OpenAI's Responses API: items to chat messages, chunks to typed events, stored responses."""

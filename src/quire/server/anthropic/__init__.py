"""Anthropic's Messages API: translates content blocks to chat messages, and chunks and errors to
its format."""

"""Anthropic's messages: blocks to messages, chunks to blocks, errors in their shape."""

"""Anthropic's Messages API: content blocks to chat messages, chunks to blocks, errors in its
format.
"""

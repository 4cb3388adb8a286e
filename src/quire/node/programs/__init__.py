"""Launched programs and their children on this node: from the launch to the end."""

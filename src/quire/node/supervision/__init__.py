"""Keeps processes of engines and encoders running, and knows their health."""

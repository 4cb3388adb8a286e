"""The content of ``/metrics``."""

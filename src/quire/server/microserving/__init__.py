"""Microserving over HTTP: addresses of leases, and requests that are sent again.

The programs behind the calls are in ``programs.builtin``; the routes in ``routes.microserving``.
"""

"""Answers that outlive their node: what a router is told, how another node goes on."""

"""The search engines of a node: an index of files (SQLite FTS5), and SearXNG."""

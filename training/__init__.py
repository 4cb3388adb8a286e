"""Train, export and evaluate the small model that ships with Quire; see README.md."""

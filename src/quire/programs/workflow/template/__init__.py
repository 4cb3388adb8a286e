"""Templates of applications, as a developer writes them: components, functions, schemas."""

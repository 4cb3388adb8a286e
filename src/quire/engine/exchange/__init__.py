"""K and V between this engine and others."""

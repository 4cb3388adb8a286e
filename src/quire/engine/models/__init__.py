"""Model families: one readable definition each over the shared ``quire.engine.layers``."""

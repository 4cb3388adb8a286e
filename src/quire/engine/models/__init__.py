"""Model families: one definition each over the shared ``quire.engine.layers``."""

"""The stages of one batch message, in the order of ``quire.core.batch``."""

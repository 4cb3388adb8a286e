"""The names of the models inside the package."""

SHIPPED_MODEL = "quire-mini"
"""The model inside the package that is served when no model is named."""
SHIPPED_READER = "quire-reader"
"""Its further trained sibling, which answers from longer contexts: the default of workflows."""

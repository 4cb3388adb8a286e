"""Retrieval of texts that the model was not trained on."""

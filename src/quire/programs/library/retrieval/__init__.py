"""Texts that the model did not see in training, found when they are needed."""

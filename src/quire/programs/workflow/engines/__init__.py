"""The engines that a template names: kinds, profiles, and what is reached elsewhere."""

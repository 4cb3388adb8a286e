"""Turns logits into tokens: processors, draws, log probabilities, grammars."""

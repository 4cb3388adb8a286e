"""From logits to tokens: processors, draws, log probabilities, grammars."""

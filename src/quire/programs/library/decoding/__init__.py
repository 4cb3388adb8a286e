"""Choice of tokens: grammars, search, watermarks, several tokens from one forward pass."""

"""Vision towers: image files into input embeddings of a decoder."""

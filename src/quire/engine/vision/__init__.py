"""Vision towers: from image files to a decoder's input embeddings."""

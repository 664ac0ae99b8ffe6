"""Features of tokens, arcs and documents: attributes, templates, words, and the index from features to weight rows."""

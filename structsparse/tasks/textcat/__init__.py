"""Classifiers of documents, and numbers predicted of them, from bags of words."""

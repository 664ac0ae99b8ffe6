"""Explanations of classifiers of documents: which words, groups, sentences and phrases a model uses."""

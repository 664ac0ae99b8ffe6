"""Explanations of text classifiers: the words, word groups, sentences and phrases that decide a prediction."""

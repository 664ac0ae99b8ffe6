"""Text categorization: linear classifiers that predict the class of a document, or a number, from a bag of words."""

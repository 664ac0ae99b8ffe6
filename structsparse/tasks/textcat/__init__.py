"""Text categorization: linear models that predict the class of a document, or a number, from its bag of words."""

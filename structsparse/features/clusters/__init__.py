"""Clusters and topics of the words of the training documents, made without labels."""

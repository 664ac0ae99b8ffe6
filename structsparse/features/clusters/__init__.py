"""Word clusters and topics, learnt from the training documents without labels."""

"""Classes of words and topics, found in the documents of training without their labels."""

"""Word clusters and topics, learnt from the texts of documents; labels are not used."""

"""Columns to rows of a weight table: attributes, templates, the index of what was seen."""

"""The version of the package, which every artifact records."""

VERSION = "0.1.0"

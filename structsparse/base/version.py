"""The version of the package structsparse; every saved model (artifact) records this version."""

VERSION = "0.1.0"

"""The version of this package, and where its makers can be reached."""

VERSION = "0.1.0"
CONTACT_URL = "https://pypi.org/project/scannet-prep/"
"""Told to servers with every request, so that those who run one know whom to ask."""

"""The version of this package, and the address of its authors."""

VERSION = "0.1.0"
CONTACT_URL = "https://pypi.org/project/scannet-prep/"
"""Sent to servers with every request, so that their operators can contact the authors."""

"""Joins samples to a batch: a few long arrays, and where each scene ends in them."""

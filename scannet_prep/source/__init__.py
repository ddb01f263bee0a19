"""Identify paths and addresses, and read the scenes they hold, for commands and for training.

place --> what a path or an address is
      --> scenes: a processed folder, or an archive of one
      --> trees: a raw tree, an archive of one, or extracted frames
"""

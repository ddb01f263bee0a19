"""Archives: one `.tar.zst` file with all scenes of a tree, and random access to each."""

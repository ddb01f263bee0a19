"""Processed scenes on disk: the `.npz` of one scene, and the folder that holds them."""

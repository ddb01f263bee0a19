"""Which scenes come in which batch, on which rank: plans that every rank computes for itself, and that agree."""

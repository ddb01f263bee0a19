"""Datasets, samplers, batches and class weights for training."""

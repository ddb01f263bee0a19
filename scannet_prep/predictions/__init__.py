"""Prediction files: reading the formats of the field, and checking the predicted ids."""

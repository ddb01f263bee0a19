"""Predictions as files: the forms that they come in, and checks of their ids."""

"""Scenes as pages and pictures, without a display and without a graphics library."""

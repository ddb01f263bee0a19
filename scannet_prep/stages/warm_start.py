"""Imported once by the process that workers are forked from, so that each begins with everything loaded."""

from scannet_prep import geometry
from scannet_prep.stages import process

__all__ = ["process"]

geometry.has_compiled_normals()

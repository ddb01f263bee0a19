"""Imported once by the process that workers are forked from, so that each begins with everything loaded."""

import signal

from scannet_prep import geometry
from scannet_prep.raw import segments
from scannet_prep.stages import process

__all__ = ["process"]

geometry.has_compiled_normals()
segments.compile_parser()
# Ctrl-C reaches every process of the terminal. Workers inherit this, and ignore it from their first moment.
signal.signal(signal.SIGINT, signal.SIG_IGN)

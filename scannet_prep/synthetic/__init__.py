"""Synthetic indoor scenes in the exact format of the release, for the demo, the tests and the benchmark.

Nothing in them comes from ScanNet: rooms and furniture are boxes with made-up sizes and colours. What is like the
release is the format, and what decides about speed and size: numbers of faces, segments and groups per vertex, and
the order of the vertices.
"""

from scannet_prep.synthetic.release import write_label_map, write_release, write_scene
from scannet_prep.synthetic.scene import SyntheticScene, make_scene

__all__ = ["SyntheticScene", "make_scene", "write_label_map", "write_release", "write_scene"]

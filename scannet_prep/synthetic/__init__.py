"""Synthetic indoor scenes in the exact format of the release, for the demo and the tests.

Nothing in them comes from ScanNet: rooms and furniture are boxes with made-up sizes and colours.
The format is that of the release, and so are the numbers of faces, segments and groups per vertex.

    room --> scene (mesh, scan, annotation) --> release (files)
"""

from scannet_prep.synthetic.release import write_label_map, write_release, write_scene
from scannet_prep.synthetic.scene import SyntheticScene, make_scene

__all__ = ["SyntheticScene", "make_scene", "write_label_map", "write_release", "write_scene"]

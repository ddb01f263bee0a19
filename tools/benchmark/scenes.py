"""The scenes to measure with: synthetic, in the format of the release."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from scannet_prep.scene import Split
from scannet_prep.splits import official_scenes
from scannet_prep.synthetic import write_release

if TYPE_CHECKING:
    from pathlib import Path

_DONE_NAME = "bench.json"


def make_scenes(raw_dir: Path, count: int, vertex_count: int, seed: int) -> list[str]:
    """Write scenes of the train split, unless the folder has these very scenes already.

    Returns:
        Their ids.
    """
    scene_ids = [str(scene_id) for scene_id in official_scenes(Split.TRAIN)[:count]]
    content = json.dumps({"scenes": scene_ids, "vertices": vertex_count, "seed": seed})
    done_path = raw_dir / _DONE_NAME
    if done_path.exists() and done_path.read_text(encoding="ascii") == content:
        return scene_ids
    shutil.rmtree(raw_dir, ignore_errors=True)
    write_release(raw_dir, scene_ids, vertices=vertex_count, seed=seed)
    done_path.write_text(content, encoding="ascii")
    return scene_ids

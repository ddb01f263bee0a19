"""Ground truth in the text files of the official evaluators of the benchmark.

    <root>/semantic/<scene>.txt     one raw id per line: nyu40 ids, or ScanNet ids for 200 classes
    <root>/instance/<scene>.txt     raw id * 1000 + number of the instance; 0 for no instance

Instances are numbered from 1 in each scene. Evaluators divide by 1000, so that a 1000th instance
would belong to the next class. The raw id of an instance is that of its group: with `--labels-from
ply`, the vertices of a group may have several raw ids, but evaluators expect one.
"""

from __future__ import annotations

from scannet_prep.errors import ScanNetPrepError
from scannet_prep.export.arrays import SceneFiles, encode_lines
from scannet_prep.processed.groups import raw_ids_of_groups, table_by_group
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import LabelSet

_MAX_INSTANCES = 999


def export_benchmark_gt(scene: ProcessedScene, label_set: LabelSet) -> SceneFiles:
    """Make both files.

    Raises:
        ScanNetPrepError: There are too many instances for the format.
    """
    raw_ids = raw_ids_of_groups(scene.meta.groups, label_set)
    labeled = sorted(group_id for group_id, raw_id in raw_ids.items() if raw_id)
    if len(labeled) > _MAX_INSTANCES:
        raise ScanNetPrepError(
            f"{scene.meta.scene_id}: has {len(labeled):,} labeled instances, "
            f"and the format can distinguish {_MAX_INSTANCES}"
        )
    # The value of each group in the instance file; 0 for one without a label.
    values = dict.fromkeys(raw_ids, 0)
    for number, group_id in enumerate(labeled, start=1):
        values[group_id] = raw_ids[group_id] * 1000 + number

    name = f"{scene.meta.scene_id}.txt"
    semantic = getattr(scene, label_set.raw_ids_key)
    return {
        f"semantic/{name}": encode_lines(semantic),
        f"instance/{name}": encode_lines(scene.instances, table_by_group(values, none=0)),
    }, {}

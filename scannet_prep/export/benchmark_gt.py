"""Ground truth for the official evaluators of the benchmark, and for those that read the same text files.

    <root>/semantic/<scene>.txt     raw ids, one a line: nyu40 ids, or ScanNet ids for 200 classes
    <root>/instance/<scene>.txt     raw id * 1000 + number of the instance, from 1 in each scene; 0 where there is none

Evaluators divide by 1000, so that the 1000th instance of a scene would be one of the next class. The raw id is that
of the group: with `--labels-from ply`, the vertices of one group may have several, and evaluators want one.
"""

from __future__ import annotations

from scannet_prep.base.errors import ScanNetPrepError
from scannet_prep.export.format import ExportedScene, ExportFormat, encode_lines
from scannet_prep.export.groups import raw_ids_of_groups, table_by_group
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.scene import Split

_MAX_INSTANCES = 999


class BenchmarkGt(ExportFormat):
    """Two text files for each scene of train and val."""

    name = "benchmark-gt"
    uses_frame = False
    inherited_options = ("labels_from",)

    def exclusion_reason(self, split: Split) -> str:
        """Test scenes have no ground truth that anybody may have."""
        return "test scenes have no annotation" if split is Split.TEST else ""

    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make both files.

        Raises:
            ScanNetPrepError: There are too many instances for the format.
        """
        raw_ids = raw_ids_of_groups(scene.meta.groups, self.label_set)
        labeled = sorted(number for number, raw_id in raw_ids.items() if raw_id)
        if len(labeled) > _MAX_INSTANCES:
            problem = f"has {len(labeled):,} labeled instances, and the format can tell {_MAX_INSTANCES} apart"
            raise ScanNetPrepError(f"{scene.meta.scene_id}: {problem}")
        numbers = {group_id: number for number, group_id in enumerate(labeled, start=1)}
        values = {
            item: raw_id * 1000 + numbers[item] if raw_id else 0 for item, raw_id in raw_ids.items()
        }
        name = f"{scene.meta.scene_id}.txt"
        semantic = getattr(scene, self.label_set.raw_ids_key)
        return ExportedScene(
            {
                f"semantic/{name}": [encode_lines(semantic)],
                f"instance/{name}": [encode_lines(scene.instances, table_by_group(values, none=0))],
            }
        )

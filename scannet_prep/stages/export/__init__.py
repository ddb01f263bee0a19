"""Processed scenes in, the folder that another program reads out: `plan`, then `run`.

| module | job | where |
| --- | --- | --- |
| `planning` | which scenes, in which format, into which folder; writes nothing | this process |
| `running` | the lock, outdated files, `export.json`, the lists | this process |
| `scene_worker` | the files of one scene | worker processes |
"""

from scannet_prep.stages.export.planning import ExportPlan, plan
from scannet_prep.stages.export.running import ExportReport, run

__all__ = ["ExportPlan", "ExportReport", "plan", "run"]

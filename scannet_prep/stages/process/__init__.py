"""Raw scenes in, processed folder out: `plan`, then `run`.

| module | job | where |
| --- | --- | --- |
| `planning` | which scenes, with which options, and why; writes nothing | this process |
| `running` | the lock, the mark, the manifest | this process |
| `scene_worker` | one scene: keep its file, or make a new one | worker processes |
| `make_scene` | raw files of one scene to a `ProcessedScene` | worker processes |
| `seen` | sizes and times of files, as the last run saw them | both |
"""

from scannet_prep.stages.process.planning import ProcessPlan, plan
from scannet_prep.stages.process.running import ProcessReport, run

__all__ = ["ProcessPlan", "ProcessReport", "plan", "run"]

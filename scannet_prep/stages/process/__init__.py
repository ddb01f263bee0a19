"""Raw scenes in, processed folder out: `plan`, then `run`.

The path of one scene, from top to bottom:

    this process    planning      the scenes, and the options of the folder (folder_before)
                    reasons       the reason why it is processed, from sizes and times (seen)
                    running       lock, mark (scene_job); the task goes to a worker (base.workers)
    worker          scene_worker  its raw files, each read once
                                  its processed file is up to date?  keep it
                    make_scene    else, in processed/: bytes --> mesh, segments, ... (raw)
                                  --> ids per vertex, points, normals --> ProcessedScene
                    scene_worker  temporary file
    this process    running       final name; manifest, failed.txt; the mark is removed
"""

from scannet_prep.stages.process.planning import ProcessPlan, plan
from scannet_prep.stages.process.running import ProcessReport, run

__all__ = ["ProcessPlan", "ProcessReport", "plan", "run"]

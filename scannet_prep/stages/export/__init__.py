"""Processed scenes in, the folder that another program reads out: `plan`, then `run`.

The path of one scene, from top to bottom:

    this process    planning      is it missing or outdated?
                    running       lock; the task goes to a worker (base.workers)
    worker          scene_worker  its processed file --> format --> files in the hidden work folder
    this process    running       final names; lists, export.json, failed.txt; the mark is removed
"""

from scannet_prep.stages.export.planning import ExportPlan, plan
from scannet_prep.stages.export.running import ExportReport, run

__all__ = ["ExportPlan", "ExportReport", "plan", "run"]

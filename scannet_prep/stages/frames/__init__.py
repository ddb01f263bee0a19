"""Sensor streams in, a folder of images, depth and poses out: `plan`, then `run`.

The path of one scene, from top to bottom:

    this process    planning      does it have a stream, and is it missing or outdated?
                    running       lock; the task goes to a worker (base.workers)
    worker          scene_worker  stream, zip files --> its folder in the hidden work folder
    this process    running       the folder gets its final name; failed.txt

A folder of a scene gets its final name when it is complete, so a run that was killed leaves only
whole scenes, and the next run continues from there.
"""

from scannet_prep.stages.frames.estimating import FramesEstimate, estimate_plan
from scannet_prep.stages.frames.planning import FramesPlan, plan
from scannet_prep.stages.frames.running import FramesReport, run

__all__ = ["FramesEstimate", "FramesPlan", "FramesReport", "estimate_plan", "plan", "run"]

"""A folder of scenes in, one archive out: `plan`, then `run`."""

from scannet_prep.stages.pack.stage import PackPlan, PackReport, WrittenArchive, plan, run

__all__ = ["PackPlan", "PackReport", "WrittenArchive", "plan", "run"]

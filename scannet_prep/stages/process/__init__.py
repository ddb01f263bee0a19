"""Raw scenes in, one `.npz` a scene out: `plan`, then `run`."""

from scannet_prep.stages.process.stage import ProcessPlan, ProcessReport, plan, run

__all__ = ["ProcessPlan", "ProcessReport", "plan", "run"]

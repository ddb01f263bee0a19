"""Raw scenes in, processed folder out: `plan`, then `run`."""

from scannet_prep.stages.process.planning import ProcessPlan, ProcessReport, plan
from scannet_prep.stages.process.running import run

__all__ = ["ProcessPlan", "ProcessReport", "plan", "run"]

"""An archive in, the folder that it was made from out: `plan`, then `run`."""

from scannet_prep.stages.unpack.stage import UnpackPlan, UnpackReport, plan, run

__all__ = ["UnpackPlan", "UnpackReport", "plan", "run"]

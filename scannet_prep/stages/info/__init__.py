"""What is in a raw or a processed tree, or in archives: `plan`, then `run`."""

from scannet_prep.stages.info.places import Info, InfoPlan, plan, run

__all__ = ["Info", "InfoPlan", "plan", "run"]

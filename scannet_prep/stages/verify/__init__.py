"""Is everything whole, and does it fit together: `plan`, then `run`, of a tree; see `archive` for those of archives."""

from scannet_prep.stages.verify.stage import VerifyPlan, plan, run

__all__ = ["VerifyPlan", "plan", "run"]

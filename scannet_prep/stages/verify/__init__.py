"""Is everything whole, and does it fit together: `plan`, then `run`, of a tree; see `archive` for those of archives."""

from scannet_prep.stages.verify.folder import SplitCount, VerifyPlan, VerifyReport, plan, run

__all__ = ["SplitCount", "VerifyPlan", "VerifyReport", "plan", "run"]

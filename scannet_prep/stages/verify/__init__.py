"""Is everything whole, and does it fit together: `run` checks a tree; see `archive` for the check of archives."""

from scannet_prep.stages.verify.stage import TreeReport, run

__all__ = ["TreeReport", "run"]

"""What is in a raw or a processed tree, or in archives."""

from scannet_prep.stages.info.stage import Info, run

__all__ = ["Info", "run"]

"""All stages on synthetic scenes: `plan`, then `run`."""

from scannet_prep.stages.demo.stage import DatasetView, DemoPlan, DemoReport, plan, run

__all__ = ["DatasetView", "DemoPlan", "DemoReport", "plan", "run"]

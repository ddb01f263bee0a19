"""The raw files that are needed, from the server into the data folder: `plan`, then `run`."""

from scannet_prep.stages.download.planning import DownloadPlan, plan
from scannet_prep.stages.download.running import DownloadReport, run
from scannet_prep.stages.download.tasks import FileOutcome

__all__ = ["DownloadPlan", "DownloadReport", "FileOutcome", "plan", "run"]

"""The raw files that are needed, from the server into the data folder: `plan`, then `run`."""

from scannet_prep.stages.download.planning import DownloadPlan, DownloadReport, FileOutcome, FileResult, check, plan
from scannet_prep.stages.download.running import run

__all__ = ["DownloadPlan", "DownloadReport", "FileOutcome", "FileResult", "check", "plan", "run"]

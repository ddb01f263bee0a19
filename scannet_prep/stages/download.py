"""The raw files that are needed, from the server into the data folder: `plan`, then `run`."""

from scannet_prep.stages.download_plan import DownloadPlan, DownloadReport, FileOutcome, FileResult, plan
from scannet_prep.stages.download_run import run

__all__ = ["DownloadPlan", "DownloadReport", "FileOutcome", "FileResult", "plan", "run"]

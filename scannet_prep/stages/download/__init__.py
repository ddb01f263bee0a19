"""The raw files that are needed, from the server into the data folder: `plan`, then `run`."""

from scannet_prep.stages.download.planning import MAX_JOBS, DownloadPlan, DownloadReport, FileOutcome, FileResult, plan
from scannet_prep.stages.download.running import check, run

__all__ = ["MAX_JOBS", "DownloadPlan", "DownloadReport", "FileOutcome", "FileResult", "check", "plan", "run"]

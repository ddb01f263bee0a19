"""The raw files that are needed, from the server into the data folder: `plan`, then `run`."""

from scannet_prep.stages.download.planning import DownloadPlan, plan
from scannet_prep.stages.download.running import DownloadReport, run
from scannet_prep.stages.download.tasks import FileOutcome
from scannet_prep.stages.download.terms import HOW_TO_SIGN, has_accepted_terms

__all__ = [
    "HOW_TO_SIGN",
    "DownloadPlan",
    "DownloadReport",
    "FileOutcome",
    "has_accepted_terms",
    "plan",
    "run",
]

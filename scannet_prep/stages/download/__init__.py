"""Download raw files from the server into the data folder: `plan`, then `run`.

plan     the files, and their paths on disk
run      check the conditions and the existing files, record the results
fetch      decide which file is requested when, and which one is given up
             remote.partial  receive the missing bytes into .<name>.part
             remote.http     one request
             raw.check       check the content
"""

from scannet_prep.stages.download.fetch import DownloadReport, Patience
from scannet_prep.stages.download.plan import DownloadPlan, RemoteFile, plan
from scannet_prep.stages.download.run import HOW_TO_SIGN, has_accepted_terms, run

__all__ = [
    "HOW_TO_SIGN",
    "DownloadPlan",
    "DownloadReport",
    "Patience",
    "RemoteFile",
    "has_accepted_terms",
    "plan",
    "run",
]

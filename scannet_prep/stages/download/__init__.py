"""Download raw files from the server into the data folder: `plan`, then `run`.

The journey of one file, from top to bottom:

    main thread   planning    list the files, and find those that exist
                  running     check terms, disk space and folder
                  scheduling  choose the next job
                                remote.gate      may a request be made now?
    ------------------------------------------------------------ one thread per job
                  worker      receive the missing bytes
                                remote.transfer  into .<name>.part
                                remote.client    over the network
                              check the content
                                content          with the parsers of raw
                              rename the file, and note its record
    ------------------------------------------------------------ queue of ended jobs
    main thread   scheduling  settle the file, or hold its failure
                                remote.gate      is the server down?
                              compare the files of a complete scene
                                worker, content
                  running     write scannet.lock and failed.txt
                  report      describe the results

The main thread alone decides: the other threads neither use the gate nor start jobs. `tasks`
contains the state of a file, which the modules hand on to each other.
"""

from scannet_prep.stages.download.planning import DownloadPlan, plan
from scannet_prep.stages.download.report import DownloadReport
from scannet_prep.stages.download.running import run
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

"""Download raw files from the server into the data folder: `plan`, then `run`.

The journey of one file, from top to bottom:

    main thread   planning   list the files, and find those that exist          plan()
                  running    queue of files; choose the next job                run()
                               remote.gate  may a request be made now?
    ------------------------------------------------------------ one thread per job
                  worker     receive the missing bytes                          Worker.fetch()
                               remote.transfer  into .<name>.part
                               remote.client    over the network
                             check the content
                               content          with the parsers of raw
                             rename the file, and record it for scannet.lock
    ------------------------------------------------------------ queue of ended jobs
    main thread   running    settle the file, or hold its failure               _Scheduler
                               remote.gate  is the server down?
                             compare the files of a complete scene
                               content

The main thread alone decides: threads neither use the gate nor start jobs. `tasks` holds the state
of each file, which is handed from one to the other.
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

"""Downloads of a synthetic release from a server on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from commands import digests
from release_server import ReleaseServer

from scannet_prep.processed.folder import FAILED_NAME
from scannet_prep.raw.lock import LOCK_NAME
from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.scene import SceneId
from scannet_prep.stages import download
from scannet_prep.stages.download import DownloadReport
from scannet_prep.stages.download.terms import RECORD_NAME
from scannet_prep.stages.selection import Selection

MESH = "_vh_clean_2.ply"
OWN_NAMES = frozenset({LOCK_NAME, FAILED_NAME, RECORD_NAME})
# As many attempts as by default, in a hurry.
PATIENCE = TransferPolicy(
    connect_timeout_s=5,
    read_timeout_s=0.3,
    answer_timeout_s=1.0,
    slowest_bytes_per_s=200,
    slow_window_s=0.3,
    attempts=8,
    first_delay_s=0.01,
    longest_delay_s=0.05,
    longest_retry_after_s=0.1,
    outage_patience_s=20,
)


def fetch(
    server: ReleaseServer,
    data_dir: Path,
    scene_ids: Sequence[str],
    *,
    jobs: int = 4,
    policy: TransferPolicy = PATIENCE,
) -> DownloadReport:
    """Fetch what segmentation needs of some scenes, and the label map."""
    selection = Selection(scene_ids=tuple(map(SceneId, scene_ids)))
    plan = download.plan(data_dir, ["seg"], selection=selection, base_url=server.base_url)
    return download.run(plan, jobs=jobs, policy=policy, needs_terms=False)


def fetched(data_dir: Path) -> dict[str, str]:
    """Digests of all files but those that the program makes itself."""
    return {name: digest for name, digest in digests(data_dir).items() if name not in OWN_NAMES}

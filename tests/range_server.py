"""An archive on a web server that misbehaves."""

from __future__ import annotations

import random
from typing import Any

from release_server import ROOT, ReleaseServer

from scannet_prep.remote.policy import TransferPolicy
from scannet_prep.remote.ranges import TAIL_BYTES, RangeSource

PATH = f"{ROOT}scannet.tar.zst"
CONTENT = random.Random(1).randbytes(3 * TAIL_BYTES + 12_345)
HERE = (700_001, 900_000)
PATIENCE = TransferPolicy(
    connect_timeout_s=5,
    read_timeout_s=0.3,
    slowest_bytes_per_s=200,
    slow_window_s=0.3,
    attempts=6,
    first_delay_s=0.01,
    longest_delay_s=0.05,
    longest_retry_after_s=0.1,
    outage_patience_s=1,
    first_answer_patience_s=1,
    untold_outage_s=0,
)


def open_source(server: ReleaseServer, **options: Any) -> RangeSource:
    return RangeSource(server.origin + PATH, policy=PATIENCE, **options)


def part(offset: int, size: int) -> bytes:
    return CONTENT[offset : offset + size]

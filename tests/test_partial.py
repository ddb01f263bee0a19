"""Partial files: who owns them, who may take them over, and what an owner can still do that was taken for dead."""

from __future__ import annotations

import base64
import os
import tempfile
import time
from pathlib import Path

import pytest

from scannet_prep.files import owner_token
from scannet_prep.remote.partial import Partial, PartialLostError, count_partial_bytes

ELSEWHERE = "0123456789ab-77-1"  # a process of a machine that cannot be asked
DEAD = owner_token().rpartition("-")[0] + "-1"
TAG = base64.urlsafe_b64encode(b'"tag"').decode()
HOUR_S = 3600


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "scene0000_00.txt"


def partial_path(target: Path, owner: str, validator: str = TAG) -> Path:
    return target.with_name(f".{target.name}.part.{owner}.{validator}")


def make_old(path: Path) -> None:
    os.utime(path, (time.time() - HOUR_S, time.time() - HOUR_S))


def claim(target: Path) -> Partial:
    partial = Partial.claim(target)
    assert partial is not None
    return partial


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def sleeper(target: Path) -> Partial:
    """A partial file of a process elsewhere that has not touched it for an hour, but lives."""
    partial = Partial(target, partial_path(target, ELSEWHERE))
    partial.append(b"half")
    make_old(partial.path)
    return partial


def test_what_an_owner_elsewhere_has_not_touched_for_long_is_taken_over(target: Path, sleeper: Partial) -> None:
    partial = claim(target)
    assert (partial.size_bytes, partial.validator) == (4, '"tag"')
    partial.append(b" and half")
    partial.publish()
    assert files_of(target.parent) == {target.name: b"half and half"}


@pytest.mark.parametrize(
    "act",
    [
        lambda partial: partial.append(b"garbage"),
        lambda partial: partial.restart(""),
        lambda partial: partial.restart('"other"'),
        lambda partial: partial.publish(),
    ],
)
@pytest.mark.parametrize("is_published", [False, True])
def test_an_owner_that_wakes_up_too_late_changes_nothing(
    target: Path, sleeper: Partial, act, is_published: bool
) -> None:
    partial = claim(target)
    if is_published:
        partial.publish()
    before = files_of(target.parent)
    with pytest.raises(PartialLostError):
        act(sleeper)
    sleeper.close()
    assert files_of(target.parent) == before


def test_what_a_late_owner_writes_reaches_no_file_in_use(target: Path, sleeper: Partial) -> None:
    partial = claim(target)
    os.write(sleeper._descriptor, b"garbage")  # between its look at the name and its writing, the name was taken
    assert partial.path.read_bytes() == b"half"


def test_an_owner_elsewhere_that_waits_shows_that_it_lives(target: Path, sleeper: Partial) -> None:
    sleeper.keep()
    assert Partial.claim(target) is None
    sleeper.append(b" a file")
    assert sleeper.path.read_bytes() == b"half a file"


@pytest.mark.parametrize("owner", ["free", DEAD], ids=["free", "dead"])
def test_what_is_taken_over_looks_used_to_other_machines(target: Path, owner: str) -> None:
    partial_path(target, owner).write_bytes(b"half")
    make_old(partial_path(target, owner))
    assert time.time() - claim(target).path.stat().st_mtime < HOUR_S / 2


def test_of_several_that_were_left_the_one_with_most_to_keep_is_taken(target: Path) -> None:
    partial_path(target, "free", "-").write_bytes(b"no validator: of no use")
    partial_path(target, DEAD).write_bytes(b"half")
    partial_path(target, "free").write_bytes(b"ha")
    partial = claim(target)
    assert files_of(target.parent) == {partial.path.name: b"half"}


def test_what_has_arrived_is_counted_by_final_name(target: Path) -> None:
    partial_path(target, "free").write_bytes(b"half")
    partial_path(target, ELSEWHERE).write_bytes(b"hal")
    assert count_partial_bytes(target.parent) == {target.name: 4}


def test_keeping_a_closed_file_does_nothing(target: Path) -> None:
    partial = claim(target)
    partial.append(b"whole")
    partial.publish()
    partial.keep()
    assert files_of(target.parent) == {target.name: b"whole"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
def test_what_another_user_left_is_copied() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        Path(folder).chmod(0o777)
        target = Path(folder) / "scene0000_00.txt"
        partial_path(target, "free").write_bytes(b"half")
        os.seteuid(12345)  # may read the file and rename it, but not write to it
        try:
            partial = claim(target)
            partial.append(b" and half")
            partial.publish()
        finally:
            os.seteuid(0)
        assert files_of(target.parent) == {target.name: b"half and half"}


@pytest.mark.parametrize("validator", ["abcde", "\u00e9"])
def test_a_validator_that_is_none_is_not_used(target: Path, validator: str) -> None:
    target.with_name(f".{target.name}.part.free.{validator}").write_bytes(b"bytes")
    partial = Partial.claim(target)
    assert partial is not None
    assert partial.validator == ""
    partial.discard()

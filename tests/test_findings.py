"""Tests of findings: how an exception becomes one, and what it is in JSON."""

import json

import msgspec
import pytest

from scannet_prep.base.findings import Finding
from scannet_prep.base.json import to_plain
from scannet_prep.errors import FileError, UsageError

SCENE = "scene0000_00"
FINDING = Finding(message="is damaged", subject="a.ply", scene_id=SCENE, hint="copy it again")


def test_finding_has_the_same_keys_in_every_json():
    plain = to_plain({"failures": {SCENE: FINDING}, "findings": [FINDING]})

    [value] = plain["findings"]
    assert plain["failures"][SCENE] == value
    assert value == {
        "path": "a.ply",
        "scene_id": SCENE,
        "severity": "error",
        "message": "is damaged",
        "hint": "copy it again",
        "trace": "",
        "error": "",
    }
    assert msgspec.json.decode(json.dumps(value), type=Finding) == FINDING


@pytest.mark.parametrize(
    ("error", "subject", "message", "hint"),
    [
        (FileError("a.ply", "is empty", "copy it"), "a.ply", "is empty", "copy it"),
        (FileError("a.zst", f"{SCENE}: is damaged"), "a.zst", "is damaged", ""),
        (UsageError("folder: has no scenes"), "folder", "has no scenes", ""),
        (MemoryError(), "folder", "memory or threads ran out", "fewer workers"),
        (RuntimeError("can't start new thread"), "folder", "memory or threads", "fewer workers"),
        (PermissionError(13, "Permission denied"), "folder", "cannot be read: Permission", ""),
    ],
)
def test_message_of_an_error_does_not_repeat_its_subject(error, subject, message, hint):
    finding = Finding.from_error(error, "folder", SCENE)

    assert finding.subject == subject
    assert finding.message.startswith(message)
    assert hint in finding.hint
    assert finding.scene_id == SCENE
    assert finding.error == type(error).__name__
    assert finding.trace == ""


def test_findings_are_sorted_by_severity_and_scene():
    note = msgspec.structs.replace(FINDING, severity="note")
    other = msgspec.structs.replace(FINDING, scene_id="scene0001_00")

    assert sorted([note, other, FINDING]) == [FINDING, other, note]

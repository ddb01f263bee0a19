"""Tests of the type of findings, and of its keys in JSON, which depend on the list."""

from __future__ import annotations

from pathlib import Path

import pytest

from scannet_prep.base.findings import Finding, Findings, to_json
from scannet_prep.errors import FileError, WorkerDiedError

SCENE = "scene0000_00"
FINDING = Finding(message="is damaged", subject="a.ply", scene_id=SCENE, hint="copy it again")


@pytest.mark.parametrize("name", ["findings", "unreadable"])
def test_findings_in_json_have_a_path_and_no_class_of_error(name: str) -> None:
    (plain,) = to_json({name: [FINDING]})[name]
    assert list(plain) == ["path", "scene_id", "severity", "message", "hint", "trace"]


def test_failures_of_a_report_in_json_have_a_class_of_error_and_no_path() -> None:
    (plain,) = to_json({"failures": (FINDING,)})["failures"]
    assert list(plain) == ["scene_id", "error", "message", "hint", "trace"]


def test_failures_of_a_manifest_in_json_have_a_class_of_error_and_no_path() -> None:
    plain = to_json({"failures": {SCENE: FINDING}})["failures"]

    assert list(plain) == [SCENE]
    assert list(plain[SCENE]) == ["scene_id", "error", "message", "hint", "trace"]


def test_checks_in_json_have_a_topic() -> None:
    check = Finding(subject="cores", message="4 of 4 may be used", severity="ok")

    expected = {"topic": "cores", "message": "4 of 4 may be used", "severity": "ok", "hint": ""}
    assert to_json({"checks": [check]}) == {"checks": [expected]}


def test_findings_of_nested_reports_have_the_same_keys() -> None:
    plain = to_json({"report": {"findings": [FINDING]}, "comparison": None})
    assert plain["report"]["findings"][0]["path"] == "a.ply"


def test_failure_message_names_the_file_that_the_error_does_not_name() -> None:
    failure = Finding.from_failure(WorkerDiedError("its process ended"), Path("raw/scene"), SCENE)
    assert failure.message == "raw/scene: its process ended"


def test_finding_takes_the_path_of_the_error_out_of_its_message() -> None:
    finding = Finding.from_exception(FileError(Path("a.ply"), "is empty"), Path("folder"))

    assert finding.subject == "a.ply"
    assert finding.message == "is empty"


def test_exception_in_a_check_becomes_an_error_of_its_scene() -> None:
    findings = Findings(SCENE)

    result = findings.attempt(Path("a.ply"), int, "x")

    (finding,) = findings.found
    assert result is None
    assert finding.is_error
    assert finding.scene_id == SCENE
    assert "ValueError" in finding.trace

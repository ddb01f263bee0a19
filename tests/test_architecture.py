"""Imports are cheap, the map of the code is complete, and errors keep their attributes."""

import copy
import inspect
import pickle
import re
import traceback
from pathlib import Path

import pytest
from commands import PYTHON, REPOSITORY_DIR, run_words, succeed

from scannet_prep import errors

ERROR_TYPES = [
    error_type
    for _, error_type in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error_type, errors.ScanNetPrepError)
]

# Too slow to import, or not installed, where a training job reads scenes or a help text is shown.
HEAVY_FOR_TRAINING = {"requests", "pandas", "plyfile", "torch", "tqdm"}
HEAVY_FOR_HELP = HEAVY_FOR_TRAINING | {"numpy", "msgspec"}
HEAVY_FOR_PROCESS = {"zstandard", "tarfile", "plyfile", "pandas", "requests"}

IMPORT_PUBLIC_NAMES = """
import scannet_prep
for name in scannet_prep.__all__:
    getattr(scannet_prep, name)
"""
IMPORT_EVERY_MODULE = """
import importlib, pkgutil, scannet_prep
for module in pkgutil.walk_packages(scannet_prep.__path__, "scannet_prep."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
SHOW_HELP = """
import runpy, sys
sys.argv = ["scannet_prep", "process", "--help"]
try:
    runpy.run_module("scannet_prep", run_name="__main__", alter_sys=True)
except SystemExit as error:
    assert not error.code, error.code
"""


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        pytest.param(IMPORT_PUBLIC_NAMES, HEAVY_FOR_TRAINING, id="public names"),
        pytest.param("import scannet_prep.stages.process", HEAVY_FOR_PROCESS, id="process"),
        pytest.param(IMPORT_EVERY_MODULE, {"torch"}, id="every module"),
        pytest.param(SHOW_HELP, HEAVY_FOR_HELP, id="help"),
    ],
)
def test_import_loads_no_heavy_packages(code, heavy):
    program = f"{code}\nimport sys\nprint('loaded:', *sys.modules)"

    outcome = succeed(PYTHON, "-c", program, run=run_words)
    names = outcome.stdout.splitlines()[-1].removeprefix("loaded: ").split()
    loaded = {name.partition(".")[0] for name in names}
    assert "scannet_prep" in loaded
    assert loaded & heavy == set()


def test_root_module_does_not_import_typing_before_signals_are_handled():
    code = "import sys, scannet_prep.__main__; sys.exit('typing' in sys.modules)"

    assert run_words(PYTHON, "-S", "-c", code, cwd=REPOSITORY_DIR).status == 0


def test_map_for_contributors_has_every_room_in_the_order_of_imports():
    project = (REPOSITORY_DIR / "pyproject.toml").read_text()
    _, contract = project.split("layers = [")
    layers = re.findall('"(.+)"', contract.partition("]")[0])
    depths = {room: depth for depth, layer in enumerate(layers) for room in layer.split(" | ")}
    del depths["__main__"]
    page = (REPOSITORY_DIR / "docs/contributing.md").read_text()
    rooms = re.findall(r"`(\w+)(?:/|\.py)`", page)

    assert sorted(rooms, key=depths.__getitem__) == rooms
    assert {*rooms} == {*depths}


@pytest.mark.parametrize("error_type", ERROR_TYPES)
def test_error_has_its_message_and_hint_also_after_pickling_and_copying(error_type):
    arguments = ["has 5 vertices, expected 6", "download it again"]
    if issubclass(error_type, errors.FileError):
        arguments.insert(0, Path("folder/scene0000_00.ply"))
    error = error_type(*arguments)

    assert error.message.endswith("has 5 vertices, expected 6")
    assert error.hint == "download it again"
    assert str(error) == f"{error.message}\nhint: download it again"
    assert "".join(traceback.format_exception(error)).count("hint:") == 1
    assert str(error_type(*arguments[:-1])) == error.message
    # An attribute of OSError.
    assert isinstance(getattr(error, "errno", None), int | None)

    protocols = range(pickle.HIGHEST_PROTOCOL + 1)
    unpickled = [pickle.loads(pickle.dumps(error, protocol)) for protocol in protocols]
    for copied in (copy.copy(error), *unpickled):
        assert type(copied) is error_type
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)
        assert copied.args == error.args


def test_errors_can_be_caught_as_builtins():
    for error_type, builtin in (
        (errors.MissingFileError, FileNotFoundError),
        (errors.OutputError, OSError),
        (errors.UnknownSceneError, KeyError),
        (errors.UsageError, ValueError),
    ):
        assert issubclass(error_type, builtin)

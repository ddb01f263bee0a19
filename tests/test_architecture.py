"""Imports point down, importing is cheap, modules stay small, errors keep what they know."""

import ast
import copy
import inspect
import pickle
import re
import traceback
from pathlib import Path

import pytest
from commands import PYTHON, run_words

from scannet_prep.base import errors
from scannet_prep.base.errors import FileError, ScanNetPrepError

REPOSITORY_DIR = Path(__file__).resolve().parents[1]
PACKAGE_DIR = REPOSITORY_DIR / "scannet_prep"
TREES = {path: ast.parse(path.read_text()) for path in PACKAGE_DIR.rglob("*.py")}
# What reading scenes in a training job must not cost, and what printing a help text must not.
HEAVY_FOR_TRAINING = {"requests", "pandas", "plyfile", "torch", "tqdm"}
CLASSES = [
    item
    for _, item in inspect.getmembers(errors, inspect.isclass)
    if issubclass(item, ScanNetPrepError)
]
HEAVY_FOR_HELP = HEAVY_FOR_TRAINING | {"numpy", "numba"}


def modules_loaded_by(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds once it has run the code."""
    program = (
        f"{code}\nimport sys\nprint('loaded:', *{{name.split('.')[0] for name in sys.modules}})"
    )
    outcome = run_words(PYTHON, "-c", program)
    assert outcome.status == 0, outcome.stderr
    loaded = set(outcome.stdout.splitlines()[-1].removeprefix("loaded: ").split())
    assert "scannet_prep" in loaded
    return loaded


def test_importing_for_training_loads_nothing_heavy_and_no_module_imports_torch() -> None:
    names = "import scannet_prep\nfor name in {*scannet_prep.__all__, 'ScanNet'}:\n    getattr(scannet_prep, name)"
    assert modules_loaded_by(names) & HEAVY_FOR_TRAINING == set()
    # Nor do the workers of `process`, and a run of it that finds nothing to do.
    heavy = {"zstandard", "tarfile", "plyfile", "pandas", "requests"}
    assert modules_loaded_by("import scannet_prep.stages.process") & heavy == set()
    assert "torch" not in modules_loaded_by(
        "import importlib, pkgutil, scannet_prep\n"
        "for module in pkgutil.walk_packages(scannet_prep.__path__, 'scannet_prep.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)"
    )


def test_little_is_loaded_before_interrupts_are_dealt_with() -> None:
    code = "import sys, scannet_prep; sys.exit('typing' in sys.modules)"
    assert run_words(PYTHON, "-S", "-c", code, cwd=REPOSITORY_DIR).status == 0


def test_help_loads_nothing_heavy() -> None:
    loaded = modules_loaded_by(
        "import runpy, sys\nsys.argv = ['scannet_prep', 'process', '--help']\n"
        "try:\n    runpy.run_module('scannet_prep', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as stop:\n    assert not stop.code, stop.code\n"
    )
    assert loaded & HEAVY_FOR_HELP == set()


def test_map_for_contributors_names_every_room() -> None:
    page = (REPOSITORY_DIR / "docs/contributing.md").read_text()
    paths = [
        path for path in PACKAGE_DIR.iterdir() if not path.name.startswith(("_", "py.", "assets"))
    ]
    assert [path.name for path in paths if f"`{path.name}{'/' * path.is_dir()}`" not in page] == []


def test_windows_reads_processed_folders_and_says_that_it_does_not_write_them(
    whole_dir: Path, tmp_path: Path
) -> None:
    """What Python lacks there is hidden."""
    outcome = run_words(
        PYTHON,
        "-c",
        "import os, sys\nfrom multiprocessing import reduction\nsys.modules['fcntl'] = None\n"
        "del os.statvfs, os.memfd_create, reduction.DupFd\nfrom scannet_prep import ScanNet\n"
        f"print(ScanNet({str(whole_dir / 'processed')!r}, split='train')[0]['points'].shape)\n"
        "from scannet_prep.cli.main import main\n"
        f"sys.exit(main(['process', {str(whole_dir / 'raw')!r}, '-o', {str(tmp_path)!r}]))",
    )
    assert (outcome.status, outcome.stdout) == (1, "(600, 3)\n"), outcome.stderr
    error, hint = (
        f"error: {tmp_path}: can be written to on Linux and macOS only",
        "hint: on Windows, run this in WSL",
    )
    assert f"{error}\n{hint}" in outcome.stderr


def test_no_two_types_have_the_same_name() -> None:
    homes: dict[str, set[str]] = {}
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(str(path))
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
                homes.setdefault(ast.unparse(node.target), set()).add(str(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_text_of_an_error_has_its_hint_and_a_traceback_shows_it_once() -> None:
    error = errors.UsageError("3 is not a split", "splits are train, val, test")
    assert str(error) == "3 is not a split\nhint: splits are train, val, test"
    assert str(errors.UsageError("3 is not a split")) == "3 is not a split"
    assert "".join(traceback.format_exception(error)).count("hint:") == 1


@pytest.mark.parametrize("error_type", CLASSES)
def test_every_error_has_a_sentence_and_survives_pickling_with_attributes(
    error_type: type[ScanNetPrepError],
) -> None:
    where = [Path("folder/scene0000_00.ply")] if issubclass(error_type, FileError) else []
    error = error_type(*where, "has 5 vertices, expected 6", "download it again")
    for found in (
        copy.copy(error),
        *(pickle.loads(pickle.dumps(error, number)) for number in range(6)),
    ):
        assert type(found) is error_type
        assert (str(found), vars(found), found.args) == (str(error), vars(error), error.args)
    assert error.message.endswith("has 5 vertices, expected 6")
    assert error.message in str(error)
    assert error.hint == "download it again"
    assert (error_type.__doc__ or "").splitlines()[0].endswith(".")
    # One that is an OSError too holds no text where a number belongs.
    assert not isinstance(error, OSError) or error.errno is None or isinstance(error.errno, int)
    # Those that a user would catch as a builtin.
    builtin = {
        "MissingFileError": FileNotFoundError,
        "OutputError": OSError,
        "UnknownSceneError": KeyError,
    }
    assert isinstance(error, builtin.get(error_type.__name__, Exception))


def test_the_tree_in_the_docstring_names_every_error_once_and_in_its_place() -> None:
    matches = (
        re.match(r"([ │├└─]*)(\w+Error)\b", line) for line in (errors.__doc__ or "").splitlines()
    )
    drawn = [(len(match[1]), match[2]) for match in matches if match]
    assert sorted(name for _, name in drawn) == sorted(item.__name__ for item in CLASSES)
    for index, (indent, name) in enumerate(drawn):
        parents = [other for depth, other in drawn[:index] if depth < indent]
        bases = [base.__name__ for base in getattr(errors, name).__bases__]
        assert not parents or parents[-1] in bases or any(parent in bases for parent in parents)
        assert index == 0 or any(base in bases for base in parents)

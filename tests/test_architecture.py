"""Imports are cheap, the map of the code is complete, and errors keep their attributes."""

import ast
import copy
import inspect
import pickle
import re
import traceback
from pathlib import Path

import pytest
from commands import PYTHON, run_words

from scannet_prep import errors
from scannet_prep.errors import FileError, ScanNetPrepError

REPOSITORY_DIR = Path(__file__).resolve().parents[1]
PACKAGE_DIR = REPOSITORY_DIR / "scannet_prep"
ERROR_TYPES = [
    error_type
    for _, error_type in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error_type, ScanNetPrepError)
]

# Too slow to import, or not installed, where a training job reads scenes or a help text is shown.
HEAVY_FOR_TRAINING = {"requests", "pandas", "plyfile", "torch", "tqdm"}
HEAVY_FOR_HELP = HEAVY_FOR_TRAINING | {"numpy"}
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


def modules_loaded_by(code: str) -> set[str]:
    """Run code in a new interpreter, and return the top-level names of all modules it loaded."""
    program = f"{code}\nimport sys\nprint('loaded:', *sys.modules)"
    outcome = run_words(PYTHON, "-c", program)
    assert outcome.status == 0, outcome.stderr
    names = outcome.stdout.splitlines()[-1].removeprefix("loaded: ").split()
    loaded = {name.partition(".")[0] for name in names}
    assert "scannet_prep" in loaded
    return loaded


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        pytest.param(IMPORT_PUBLIC_NAMES, HEAVY_FOR_TRAINING, id="public names"),
        pytest.param("import scannet_prep.stages.process", HEAVY_FOR_PROCESS, id="process"),
        pytest.param(IMPORT_EVERY_MODULE, {"torch"}, id="every module"),
        pytest.param(SHOW_HELP, HEAVY_FOR_HELP, id="help"),
    ],
)
def test_import_loads_no_heavy_packages(code: str, heavy: set[str]) -> None:
    assert modules_loaded_by(code) & heavy == set()


def test_root_module_does_not_import_typing_before_signals_are_handled() -> None:
    code = "import sys, scannet_prep; sys.exit('typing' in sys.modules)"

    assert run_words(PYTHON, "-S", "-c", code, cwd=REPOSITORY_DIR).status == 0


def test_map_for_contributors_names_every_room() -> None:
    page = (REPOSITORY_DIR / "docs/contributing.md").read_text()
    paths = [
        path for path in PACKAGE_DIR.iterdir() if not path.name.startswith(("_", "py.", "assets"))
    ]
    names = [f"{path.name}/" if path.is_dir() else path.name for path in paths]

    assert [name for name in names if f"`{name}`" not in page] == []


def test_no_two_types_have_the_same_name() -> None:
    modules: dict[str, set[str]] = {}
    for path in PACKAGE_DIR.rglob("*.py"):
        # The old archive, which goes.
        if path.name in {"byte_source.py", "opened.py", "layout.py"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, set()).add(str(path))
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
                modules.setdefault(ast.unparse(node.target), set()).add(str(path))

    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


def test_text_of_error_ends_with_its_hint() -> None:
    error = errors.UsageError("3 is not a split", "splits are train, val, test")

    assert str(error) == "3 is not a split\nhint: splits are train, val, test"


def test_text_of_error_without_hint_is_its_message() -> None:
    assert str(errors.UsageError("3 is not a split")) == "3 is not a split"


def test_traceback_shows_hint_once() -> None:
    error = errors.UsageError("3 is not a split", "splits are train, val, test")

    assert "".join(traceback.format_exception(error)).count("hint:") == 1


def make_error(error_type: type[ScanNetPrepError]) -> ScanNetPrepError:
    arguments = ["has 5 vertices, expected 6", "download it again"]
    if issubclass(error_type, FileError):
        return error_type(Path("folder/scene0000_00.ply"), *arguments)
    return error_type(*arguments)


@pytest.mark.parametrize("error_type", ERROR_TYPES)
def test_error_has_its_message_and_hint(error_type: type[ScanNetPrepError]) -> None:
    error = make_error(error_type)

    assert error.message.endswith("has 5 vertices, expected 6")
    assert error.message in str(error)
    assert error.hint == "download it again"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error_type", ERROR_TYPES)
def test_error_survives_pickling(error_type: type[ScanNetPrepError], protocol: int) -> None:
    error = make_error(error_type)

    unpickled = pickle.loads(pickle.dumps(error, protocol))

    assert type(unpickled) is error_type
    assert str(unpickled) == str(error)
    assert vars(unpickled) == vars(error)
    assert unpickled.args == error.args


@pytest.mark.parametrize("error_type", ERROR_TYPES)
def test_error_survives_copying(error_type: type[ScanNetPrepError]) -> None:
    error = make_error(error_type)

    copied = copy.copy(error)

    assert type(copied) is error_type
    assert str(copied) == str(error)
    assert vars(copied) == vars(error)
    assert copied.args == error.args


@pytest.mark.parametrize("error_type", ERROR_TYPES)
def test_docstring_of_error_begins_with_a_sentence(error_type: type[ScanNetPrepError]) -> None:
    first_line = (error_type.__doc__ or "").splitlines()[0]

    assert first_line.endswith(".")


@pytest.mark.parametrize("error_type", ERROR_TYPES)
def test_errno_of_error_is_a_number_or_none(error_type: type[ScanNetPrepError]) -> None:
    error = make_error(error_type)

    assert isinstance(getattr(error, "errno", None), int | None)


@pytest.mark.parametrize(
    ("error_type", "builtin"),
    [
        (errors.MissingFileError, FileNotFoundError),
        (errors.OutputError, OSError),
        (errors.UnknownSceneError, KeyError),
    ],
)
def test_error_can_be_caught_as_builtin(
    error_type: type[ScanNetPrepError], builtin: type[Exception]
) -> None:
    assert issubclass(error_type, builtin)


def read_drawn_errors() -> list[tuple[int, str]]:
    """Read indent and name of each error in the tree that the docstring of `errors` draws."""
    drawn = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([ │├└─]*)(\w+Error)\b", line)
        if match:
            drawn.append((len(match[1]), match[2]))
    return drawn


def test_drawn_tree_has_every_error_once() -> None:
    names = [name for _, name in read_drawn_errors()]

    assert sorted(names) == sorted(error_type.__name__ for error_type in ERROR_TYPES)


def test_drawn_tree_has_each_error_below_its_base() -> None:
    drawn = read_drawn_errors()

    for index, (indent, name) in enumerate(drawn[1:], 1):
        # The parent is the last error above that is drawn further to the left.
        parent = [other for other_indent, other in drawn[:index] if other_indent < indent][-1]
        bases = [base.__name__ for base in getattr(errors, name).__bases__]
        assert parent in bases, name

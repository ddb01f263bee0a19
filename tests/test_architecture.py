"""Imports point down, importing is cheap, modules stay small."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY_DIR = Path(__file__).resolve().parents[1]
PACKAGE_DIR = REPOSITORY_DIR / "scannet_prep"
CONFIG_PATH = REPOSITORY_DIR / "pyproject.toml"
MAX_MODULE_LINES = 400
# What reading scenes in a training job must not cost, and what printing a help text must not.
HEAVY_FOR_TRAINING = {"requests", "pandas", "plyfile", "torch", "tqdm"}
HEAVY_FOR_HELP = HEAVY_FOR_TRAINING | {"numpy", "numba"}
PLANTED = (
    ("scene", "from scannet_prep.stages import process", "scannet_prep.scene -> scannet_prep.stages.process"),
    (
        "progress",
        "def late():\n    from .stages import process",
        "scannet_prep.progress -> scannet_prep.stages.process",
    ),
    ("raw.mesh", "from scannet_prep import ScanNet", "scannet_prep.raw.mesh -> scannet_prep (l."),
    ("labels", "from scannet_prep import splits", "scannet_prep.labels -> scannet_prep.splits"),
    ("labels", "import requests", "scannet_prep.labels -> requests"),
    ("geometry", "from requests.adapters import HTTPAdapter", "scannet_prep.geometry -> requests"),
    ("dataset", "import plyfile", "scannet_prep.dataset -> plyfile"),
    ("progress", "from tqdm.auto import tqdm", "scannet_prep.progress -> tqdm"),
    ("dataset", "def late():\n    import torch.utils.data", "scannet_prep.dataset -> torch"),
)


def run_python(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def lint_imports(copy_dir: Path) -> tuple[int, str]:
    run = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    result = run_python("-c", run, "--no-cache", cwd=copy_dir)
    return result.returncode, " ".join((result.stdout + result.stderr).split())


def modules_loaded_by(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds once it has run the code."""
    result = run_python("-c", f"{code}\nimport sys\nprint('loaded:', *{{name.split('.')[0] for name in sys.modules}})")
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines()[-1].removeprefix("loaded: ").split())


@pytest.fixture
def copy_dir(tmp_path: Path) -> Path:
    shutil.copy(CONFIG_PATH, tmp_path)
    shutil.copytree(PACKAGE_DIR, tmp_path / "scannet_prep", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_imports_of_the_package_point_down(copy_dir: Path) -> None:
    status, output = lint_imports(copy_dir)
    assert status == 0, output
    assert "0 broken" in output


def test_planted_imports_are_all_reported(copy_dir: Path) -> None:
    for module, line, _ in PLANTED:
        with copy_dir.joinpath("scannet_prep", *module.split(".")).with_suffix(".py").open("a") as file:
            file.write(f"\n{line}\n")
    status, output = lint_imports(copy_dir)
    assert status == 1
    assert [complaint for *_, complaint in PLANTED if complaint not in output] == []


def test_module_in_no_layer_is_reported(copy_dir: Path) -> None:
    (copy_dir / "scannet_prep/utils.py").touch()
    status, output = lint_imports(copy_dir)
    assert status == 1
    assert "not listed as layers: - scannet_prep.utils" in output


def test_importing_for_training_loads_nothing_heavy() -> None:
    loaded = modules_loaded_by(
        "import scannet_prep\nfor name in {*scannet_prep.__all__, 'ScanNet'}:\n    getattr(scannet_prep, name)"
    )
    assert "numpy" in loaded
    assert loaded & HEAVY_FOR_TRAINING == set()


def test_no_module_imports_torch_when_it_is_imported() -> None:
    loaded = modules_loaded_by(
        "import importlib, pkgutil, scannet_prep\n"
        "for module in pkgutil.walk_packages(scannet_prep.__path__, 'scannet_prep.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)"
    )
    assert "numpy" in loaded
    assert "torch" not in loaded


@pytest.mark.parametrize("arguments", [["--help"], ["process", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    loaded = modules_loaded_by(
        "from scannet_prep.cli.main import main\n"
        f"try:\n    status = main({arguments!r})\n"
        "except SystemExit as stop:\n    status = stop.code\n"
        "assert not status, status"
    )
    assert "scannet_prep" in loaded
    assert loaded & HEAVY_FOR_HELP == set()


def test_python_m_scannet_prep_help_loads_nothing_heavy() -> None:
    loaded = modules_loaded_by(
        "import runpy, sys\n"
        "sys.argv = ['scannet_prep', '--help']\n"
        "try:\n    runpy.run_module('scannet_prep', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as stop:\n    assert not stop.code, stop.code\n"
    )
    assert "scannet_prep" in loaded
    assert loaded & HEAVY_FOR_HELP == set()


def test_map_for_contributors_names_every_room() -> None:
    page = (REPOSITORY_DIR / "docs/contributing.md").read_text()
    rooms = [
        path.name + "/" * path.is_dir() for path in PACKAGE_DIR.iterdir() if not path.name.startswith(("_", "py."))
    ]
    assert [room for room in rooms if f"`{room}`" not in page and room != "assets/"] == []


def test_no_module_is_too_long_to_read_in_one_go() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE_DIR.rglob("*.py")}
    assert lengths
    assert {path: length for path, length in lengths.items() if length > MAX_MODULE_LINES} == {}


def test_processed_folder_is_read_where_there_is_no_fcntl(whole_dir: Path) -> None:
    """As on Windows."""
    result = run_python(
        "-c",
        "import sys\nsys.modules['fcntl'] = None\nfrom scannet_prep import ScanNet\n"
        f"print(ScanNet({str(whole_dir / 'processed')!r}, split='train')[0]['points'].shape)",
    )
    assert (result.returncode, result.stdout) == (0, "(600, 3)\n"), result.stderr

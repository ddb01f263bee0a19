"""The notebook docs/tour.ipynb runs, and is stored without output."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.extra("nbclient", "nbformat", "ipykernel", "torch")
NOTEBOOK_PATH = Path(__file__).parent.parent / "docs/tour.ipynb"
CODE_CELLS = [
    cell for cell in json.loads(NOTEBOOK_PATH.read_text())["cells"] if cell["cell_type"] == "code"
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The outputs of the code cells."""
    import nbformat
    from nbclient import NotebookClient

    directory = tmp_path_factory.mktemp("tour")
    notebook = nbformat.read(NOTEBOOK_PATH, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(directory / "ipython"))
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        patch.setenv("PYTHONWARNINGS", "")
        patch.setenv("PYTHONPATH", f"{NOTEBOOK_PATH.parents[1]}:{os.environ.get('PYTHONPATH', '')}")
        client = NotebookClient(
            notebook, timeout=120, resources={"metadata": {"path": str(directory)}}
        )
        client.execute()
    return [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def text_of(outputs: list[Any]) -> str:
    return "".join(output.get("text", "") for output in outputs)


@pytest.mark.filterwarnings("ignore")  # of jupyter
def test_notebook_runs_to_its_scores(outputs: list[list[Any]]) -> None:
    assert "mean IoU 0." in text_of(outputs[-1])


@pytest.mark.filterwarnings("ignore")
def test_notebook_shows_a_picture(outputs: list[list[Any]]) -> None:
    kinds = {kind for cell in outputs for output in cell for kind in output.get("data", {})}

    assert "image/png" in kinds


@pytest.mark.filterwarnings("ignore")
def test_training_in_notebook_lowers_the_loss(outputs: list[list[Any]]) -> None:
    words = text_of(outputs[-2]).split()

    assert float(words[3]) < float(words[1])


@pytest.mark.parametrize("cell", CODE_CELLS, ids=lambda cell: cell["id"])
def test_notebook_is_stored_without_output(cell: dict[str, Any]) -> None:
    assert cell["outputs"] == []

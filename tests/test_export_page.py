"""The programs for other containers in docs/export.md, and what their files hold."""

import io
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from commands import PYTHON, TRAIN, run_words

from scannet_prep import ScanNet

PAGE = (Path(__file__).parent.parent / "docs/export.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(out_dir, tmp_path):
    """A folder with three scenes in data/processed, one for each split."""
    (tmp_path / "data").mkdir()
    out_dir.rename(tmp_path / "data/processed")
    return tmp_path


def run_program(word, folder):
    """Run the program of the page that contains a word."""
    (program,) = [program for program in PROGRAMS if word in program]
    outcome = run_words(PYTHON, "-W", "error", "-c", program, cwd=folder)
    assert outcome.status == 0, outcome.stderr
    return outcome.stdout


@pytest.mark.extra("h5py")
def test_hdf5_file_of_the_page_holds_every_array_of_every_split(folder):
    import h5py

    run_program("h5py", folder)

    with h5py.File(folder / "data/scannet.h5") as file:
        for split in ("train", "val", "test"):
            (sample,) = ScanNet(folder / "data/processed", split=split)
            group = file[f"{split}/{sample['scene_id']}"]
            assert group.keys() == sample.keys()
            for key, value in sample.items():
                stored = group[key].asstr()[()] if isinstance(value, str) else group[key][()]
                np.testing.assert_array_equal(stored, value, strict=True)


@pytest.mark.extra("webdataset")
def test_webdataset_shard_of_the_page_holds_every_array(folder):
    (sample,) = ScanNet(folder / "data/processed", split="train")

    run_program("ShardWriter", folder)

    with tarfile.open(folder / "data/train-000000.tar") as shard:
        files = {member.name: shard.extractfile(member).read() for member in shard}
    assert sample.pop("scene_id") == TRAIN
    assert files.pop(f"{TRAIN}.label_set.txt").decode() == sample.pop("label_set")
    assert files.keys() == {f"{TRAIN}.{key}.npy" for key in sample}
    for key, array in sample.items():
        stored = np.load(io.BytesIO(files[f"{TRAIN}.{key}.npy"]))
        np.testing.assert_array_equal(stored, array, strict=True)


@pytest.mark.extra("webdataset")
def test_webdataset_reader_of_the_page_prints_the_scenes_of_the_writer(folder):
    (sample,) = ScanNet(folder / "data/processed", split="train")

    run_program("ShardWriter", folder)

    assert run_program("decode()", folder) == f"{TRAIN} {sample['points'].shape}\n"

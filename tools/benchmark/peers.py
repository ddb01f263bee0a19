"""The same samples in other file formats, as far as their packages are installed."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from scannet_prep import collate_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from scannet_prep import ScanNet

_SCENES_PER_BATCH = 4
_TEXT_KEYS = {"label_set", "scene_id"}


class _Peer:
    """Dataset of stored arrays, which each process opens for itself when it first reads."""

    def __init__(
        self, path: Path, open_reader: Callable[[Path], Callable[[int], dict[str, Any]]]
    ) -> None:
        self._path = path
        self._open = open_reader
        self._read: Callable[[int], dict[str, Any]] | None = None

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        if self._read is None:
            self._read = self._open(self._path)
        index, _ = key
        return self._read(index)


def make_peers(dataset: ScanNet, folder: Path) -> Iterator[tuple[str, Any]]:
    """Store the scenes in every format whose package is installed.

    Returns:
        Name of the format and dataset, which is map-style, or iterable for webdataset.
    """
    folder.mkdir(exist_ok=True)
    samples = [
        {key: value for key, value in sample.items() if key not in _TEXT_KEYS} for sample in dataset
    ]
    for name, package, write, open_reader in (
        ("np.load", "numpy", _write_npz, _open_npz),
        ("torch.load", "torch", _write_torch, _open_torch),
        ("h5py", "h5py", _write_hdf5, _open_hdf5),
    ):
        if find_spec(package):
            write(samples, folder)
            yield name, _Peer(folder, open_reader)
    if find_spec("webdataset"):
        yield "webdataset", _make_webdataset(samples, folder)


def _write_npz(samples: Sequence[dict[str, Any]], folder: Path) -> None:
    for number, sample in enumerate(samples):
        np.savez(folder / f"{number}.npz", **sample)


def _open_npz(folder: Path) -> Callable[[int], dict[str, Any]]:
    return lambda index: dict(np.load(folder / f"{index}.npz"))


def _write_torch(samples: Sequence[dict[str, Any]], folder: Path) -> None:
    torch: Any = importlib.import_module("torch")
    for number, sample in enumerate(samples):
        torch.save(
            {key: torch.from_numpy(value) for key, value in sample.items()}, folder / f"{number}.pt"
        )


def _open_torch(folder: Path) -> Callable[[int], dict[str, Any]]:
    torch: Any = importlib.import_module("torch")
    return lambda index: dict(torch.load(folder / f"{index}.pt"))


def _write_hdf5(samples: Sequence[dict[str, Any]], folder: Path) -> None:
    h5py: Any = importlib.import_module("h5py")
    with h5py.File(folder / "scenes.h5", "w") as file:
        for number, sample in enumerate(samples):
            for key, value in sample.items():
                file[f"{number}/{key}"] = value


def _open_hdf5(folder: Path) -> Callable[[int], dict[str, Any]]:
    file = importlib.import_module("h5py").File(folder / "scenes.h5")
    return lambda index: {key: value[()] for key, value in file[str(index)].items()}


def _make_webdataset(samples: Sequence[dict[str, Any]], folder: Path) -> Any:  # noqa: ANN401 - a package's own type
    webdataset: Any = importlib.import_module("webdataset")
    # One file for each worker.
    paths = [str(folder / f"{number}.tar") for number in range(2)]
    for number, path in enumerate(paths):
        with webdataset.TarWriter(path) as writer:
            for index, sample in list(enumerate(samples))[number :: len(paths)]:
                writer.write(
                    {"__key__": str(index)} | {f"{key}.npy": value for key, value in sample.items()}
                )
    pipeline = webdataset.WebDataset(paths, shardshuffle=False).decode().map(_strip)
    return pipeline.batched(_SCENES_PER_BATCH, collation_fn=collate_torch)


def _strip(sample: dict[str, Any]) -> dict[str, Any]:
    return {
        key.removesuffix(".npy"): value for key, value in sample.items() if key.endswith(".npy")
    }

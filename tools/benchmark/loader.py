"""Part `loader`: vertices per second through PyTorch's loader, and balance of batches."""

from __future__ import annotations

import importlib
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmark.peers import make_peers
from benchmark.scenes import make_scenes
from scannet_prep import PointBudgetBatchSampler, ScanNet, collate_torch
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.stages import pack, process
from scannet_prep.transforms import (
    ColorJitter,
    Compose,
    CropPoints,
    Flip,
    GridSample,
    Normalize,
    Rotate,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benchmark.settings import Result, Settings

_MAX_POINTS = 600_000
_WORKERS = 2
_AUGMENTATION = Compose(
    Rotate(),
    Flip(),
    ColorJitter(),
    Normalize(),
    GridSample(0.02, has_inverse=False),
    CropPoints(100_000),
)
# The train split: number of scenes, and their numbers of vertices, which are about log-normal.
_SCENES = 1201
_MEAN_VERTICES = 149_000
_MIN_VERTICES = 5_000
_MAX_VERTICES = 550_000
_SIGMA = 0.6
_MANY_SCENES = 100_000
_EPOCHS = 100
_RANKS = (4, 8)
_FIXED_BATCH = 4


def measure(settings: Settings) -> Result:
    """Measure everything."""
    if find_spec("torch") is None:
        raise SystemExit("error: part loader needs PyTorch\nhint: pip install torch")
    raw_dir = settings.folder / "raw"
    out_dir = settings.folder / "processed"
    make_scenes(raw_dir, 2 * settings.scene_count, settings.vertex_count, settings.seed)
    process.run(process.plan(raw_dir, out_dir, ProcessOptions(scannet200=True, align_axis=True)))
    archive_path = settings.folder / "loader.tar.zst"
    pack.run(out_dir, archive_path, is_forced=True)
    sources = {"folder": out_dir, "archive": archive_path}
    return {
        "throughput": measure_throughput(sources, out_dir, settings.repeat),
        "balance": {str(ranks): _measure_balance(ranks, settings.seed) for ranks in _RANKS},
        "planning": _measure_planning(settings),
    }


def measure_throughput(sources: Mapping[str, Path], folder: Path, repeat: int) -> Result:
    """Time epochs of each loader, and of a plain loop, alternately; the fastest counts.

    Args:
        sources: Path of a folder or an archive of the same scenes, by name.
        folder: The processed folder, for the plain loop.
        repeat: Number of epochs of each.
    """
    paths = sorted((folder / "train").glob("*.npz"))
    loaders: dict[str, Any] = {}
    for name, path in sources.items():
        loaders[name] = _make_loader(path)
        loaders[f"{name}, augmented"] = _make_loader(path, transform=_AUGMENTATION)
    loaders["folder, tensors sent by PyTorch"] = _make_loader(folder, collate_fn=_collate_plainly)
    loaders |= _make_peer_loaders(folder)
    vertex_count = int(ScanNet(folder, split="train").lengths.sum())
    seconds: dict[str, list[float]] = {}
    # The first epoch starts the workers, and does not count.
    for epoch in range(repeat + 1):
        seconds.setdefault("plain loop over np.load", []).append(
            _time(_load(path) for path in paths)
        )
        for name, loader in loaders.items():
            if hasattr(loader.batch_sampler, "set_epoch"):
                loader.batch_sampler.set_epoch(epoch)
            seconds.setdefault(name, []).append(_time(loader))
    rates = {name: vertex_count / min(values[1:]) for name, values in seconds.items()}
    return {
        "vertices_per_s": rates,
        "scenes": len(paths),
        "workers": _WORKERS,
        "max_points": _MAX_POINTS,
    }


def _make_loader(path: Path, transform: Any = None, collate_fn: Any = collate_torch) -> Any:  # noqa: ANN401 - torch's
    dataset = ScanNet(path, split="train", transform=transform)
    sampler = PointBudgetBatchSampler(dataset, max_points=_MAX_POINTS, rank=0, world_size=1)
    return _run_workers(dataset, batch_sampler=sampler, collate_fn=collate_fn)


def _make_peer_loaders(folder: Path) -> dict[str, Any]:
    """Make loaders of the same scenes in other file formats, with the same batches and types."""
    dataset = ScanNet(folder, split="train")
    loaders = {}
    for name, peer in make_peers(dataset, folder.parent / "peers"):
        sampler = PointBudgetBatchSampler(dataset, max_points=_MAX_POINTS, rank=0, world_size=1)
        batches: Any = {"batch_sampler": sampler, "collate_fn": collate_torch}
        # webdataset makes its batches itself.
        options = {"batch_size": None} if name == "webdataset" else batches
        loaders[f"peer: {name}"] = _run_workers(peer, **options)
    return loaders


def _run_workers(dataset: Any, **options: Any) -> Any:  # noqa: ANN401 - torch's
    torch_data: Any = importlib.import_module("torch.utils.data")
    return torch_data.DataLoader(dataset, num_workers=_WORKERS, persistent_workers=True, **options)


def _collate_plainly(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Make the same batch as a dict, which PyTorch sends in its own way."""
    return dict(collate_torch(samples))


def _load(path: Path) -> int:
    with np.load(path) as content:
        return sum(content[key].nbytes for key in content.files)


def _time(batches: Iterable[object]) -> float:
    start = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - start


def _measure_balance(ranks: int, seed: int) -> Result:
    """Measure steps, imbalance and fill of many epochs, also for a fixed number of scenes."""
    torch_data: Any = importlib.import_module("torch.utils.data")
    lengths = _make_lengths(seed)
    sampler = PointBudgetBatchSampler(lengths, max_points=_MAX_POINTS, rank=0, world_size=ranks)
    fixed_samplers = [
        torch_data.DistributedSampler(lengths, num_replicas=ranks, rank=rank)
        for rank in range(ranks)
    ]
    summaries = []
    fixed_imbalances = []
    for epoch in range(_EPOCHS):
        sampler.set_epoch(epoch)
        summaries.append(sampler.describe())
        for fixed in fixed_samplers:
            fixed.set_epoch(epoch)
        # Points in each batch, (ranks, steps).
        loads = np.array([_load_of_batches(lengths, list(fixed)) for fixed in fixed_samplers])
        fixed_imbalances.append(float((loads.max(axis=0) / loads.mean(axis=0)).mean()))

    imbalances = [summary.imbalance for summary in summaries]
    fills = [summary.fill for summary in summaries]
    return {
        "epochs": _EPOCHS,
        "step_counts": sorted({summary.step_count for summary in summaries}),
        "imbalance": {"mean": float(np.mean(imbalances)), "worst": max(imbalances)},
        "fill": {"mean": float(np.mean(fills)), "worst": min(fills)},
        "padding": max(summary.padding for summary in summaries),
        "fixed": {
            "imbalance": float(np.mean(fixed_imbalances)),
            "padding": fixed_samplers[0].total_size - len(lengths),
        },
    }


def _measure_planning(settings: Settings) -> Result:
    """Time the planning for very many scenes, once and per epoch; the fastest counts."""
    lengths = _make_lengths(settings.seed, _MANY_SCENES)
    once_s = []
    epoch_s = []
    for _ in range(settings.repeat):
        start = time.perf_counter()
        sampler = PointBudgetBatchSampler(
            lengths, max_points=_MAX_POINTS, rank=0, world_size=_RANKS[-1]
        )
        once_s.append(time.perf_counter() - start)
        start = time.perf_counter()
        next(iter(sampler))
        epoch_s.append(time.perf_counter() - start)
    return {"scenes": _MANY_SCENES, "once_s": min(once_s), "epoch_s": min(epoch_s)}


def _make_lengths(seed: int, count: int = _SCENES) -> NDArray[np.int64]:
    """Draw numbers of vertices with the mean and the maximum of the train split."""
    sizes = np.random.default_rng(seed).lognormal(0, _SIGMA, count)
    # Clipping changes the mean, so scale and clip until both fit.
    for _ in range(50):
        sizes = np.clip(sizes * _MEAN_VERTICES / sizes.mean(), _MIN_VERTICES, _MAX_VERTICES)
    return sizes.astype(np.int64)


def _load_of_batches(lengths: NDArray[np.int64], scenes: list[int]) -> list[int]:
    starts = range(0, len(scenes), _FIXED_BATCH)
    return [int(lengths[scenes[start : start + _FIXED_BATCH]].sum()) for start in starts]


def describe(result: Result) -> str:
    """Format the results as tables."""
    throughput = result["throughput"]
    rates = throughput["vertices_per_s"]
    plain = rates["plain loop over np.load"]
    scenes = f"{throughput['scenes']} scenes, batches of {throughput['max_points']:,} points"
    sizes = f"mean {_MEAN_VERTICES:,}, at most {_MAX_VERTICES:,} vertices"
    head = f"{'ranks':<8}{'steps':>7}{'imbalance':>12}{'worst':>9}{'fill':>8}{'worst':>9}"
    lines = [
        f"loader: {throughput['workers']} workers, {scenes}, warm",
        f"  {'million vertices per second':<36}{'':>8}{'to np.load':>12}",
        *(f"  {name:<36}{rate / 1e6:8.1f}{rate / plain:12.2f}" for name, rate in rates.items()),
        "",
        f"balance: {_SCENES:,} scenes, log-normal, {sizes}; {_EPOCHS} epochs",
        f"  {head}{'twice':>7}",
    ]
    for ranks, row in result["balance"].items():
        steps = " ".join(map(str, row["step_counts"]))
        imbalance = row["imbalance"]
        fill = row["fill"]
        fixed = row["fixed"]
        lines.append(
            f"  {ranks:<8}{steps:>7}{imbalance['mean']:12.4f}{imbalance['worst']:9.4f}"
            f"{fill['mean']:8.3f}{fill['worst']:9.3f}{row['padding']:7}"
        )
        lines.append(
            f"  {'':<8}DistributedSampler, {_FIXED_BATCH} scenes per batch: "
            f"imbalance {fixed['imbalance']:.4f}, scenes that occur twice {fixed['padding']}"
        )
    planning = result["planning"]
    lines.append(
        f"  planning {planning['scenes']:,} scenes: {planning['once_s']:.2f} s once, "
        f"{planning['epoch_s']:.2f} s an epoch"
    )
    return "\n".join(lines)

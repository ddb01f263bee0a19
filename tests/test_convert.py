"""Batches for ocnn, torch_geometric and Pointcept are what those programs make of the same scenes one by one."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from test_collation import make_sample
from training_sources import import_ocnn

from scannet_prep import collate_torch
from scannet_prep.convert import to_ocnn, to_pointcept, to_pyg
from scannet_prep.errors import UsageError
from scannet_prep.transforms import Compose, GridSample, Normalize, NormalizeColor, octformer

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def make_samples() -> list[dict[str, Any]]:
    """Three scenes as the dataset gives them: metres, uint8 colours, -1 for unlabeled."""
    samples = [make_sample(count, count) for count in (3, 5, 4)]
    for count, sample in zip((3, 5, 4), samples, strict=True):
        sample |= {"normals": np.full((count, 3), 0.5, np.float32), "instances": np.arange(count, dtype=np.int32)}
    return samples


def one_by_one(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each scene as tensors, with colours in 0..1."""
    return [
        {key: torch.from_numpy(value) for key, value in sample.items() if key != "scene_id"}
        | {"colors": torch.from_numpy(sample["colors"]) / 255}
        for sample in samples
    ]


def test_ocnn_gets_what_it_merges_itself_and_nothing_beyond_its_cube() -> None:
    octree = import_ocnn().octree
    samples = make_samples()
    expected = octree.Points.init_points("cpu", batch_size=3)
    expected.merge_points(
        [octree.Points(s["points"] / 10.24, s["normals"], s["colors"], s["labels"] + 1) for s in one_by_one(samples)]
    )
    found = to_ocnn(collate_torch(samples))
    for name in ("points", "normals", "features", "labels", "batch_id", "batch_npt"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.batch_size == expected.batch_size == 3
    octree.Octree(5, 2, batch_size=3).build_octree(found)
    samples[1]["points"][2, 0] = -11  # beyond ocnn's cube
    with pytest.raises(UsageError, match=r"points reach 11.00 m from the origin, expected at most 10.24 m") as caught:
        to_ocnn(collate_torch(samples))
    assert "Normalize()" in caught.value.hint
    assert to_ocnn(collate_torch(samples), scale=22.0).points.min() == -0.5


@pytest.mark.skipif(find_spec("torch_geometric") is None, reason="pip install torch_geometric")
@pytest.mark.filterwarnings("ignore")
def test_torch_geometric_gets_what_it_batches_itself() -> None:
    from torch_geometric.data import Batch, Data

    samples = make_samples()
    for sample, edges in zip(samples, ([[0, 1], [1, 2]], [[4], [0]], [[], []]), strict=True):
        sample["edge_index"] = np.array(edges, int)
    expected = Batch.from_data_list(
        [
            Data(pos=s["points"], x=s["colors"], normal=s["normals"], y=s["labels"], edge_index=s["edge_index"])
            for s in one_by_one(samples)
        ]
    )
    found = to_pyg(collate_torch(samples))
    keys = sorted(expected.keys())
    assert sorted(found.keys()) == keys
    for key in keys:
        assert torch.equal(found[key], expected[key]), key
    assert found.num_graphs == expected.num_graphs == 3
    assert found.num_nodes == 12


def test_pointcept_gets_its_names_types_and_colours() -> None:
    samples = make_samples()
    grid = Compose(Normalize(), GridSample(1e-4))
    sampled = [grid(sample, np.random.default_rng(0)) for sample in samples]
    found = to_pointcept(collate_torch(sampled))
    parts = one_by_one(samples)
    assert found["feat"] == pytest.approx(
        torch.cat([torch.cat([s["colors"], s["normals"]], 1) for s in parts]), abs=1e-6
    )
    assert found["feat"].dtype == found["coord"].dtype == torch.float32
    assert {found[key].dtype for key in ("grid_coord", "segment", "instance", "offset")} == {torch.int64}
    assert found["offset"].tolist() == [3, 8, 12]
    assert found["segment"].tolist() == [label for s in samples for label in s["labels"].tolist()]
    with pytest.raises(UsageError, match="has no grid"):
        to_pointcept(collate_torch(samples))


def test_the_preset_of_octformer_fills_an_octree_of_its_depth() -> None:
    octree_of = import_ocnn().octree.Octree
    scenes = [sample | {"points": sample["points"] * 4 + 9} for sample in make_samples()]  # rooms, far from the origin
    crops = [octformer()(sample, np.random.default_rng(seed)) for seed, sample in enumerate(scenes)]
    points = to_ocnn(collate_torch(crops))
    assert points.batch_npt.tolist() == [len(sample["points"]) for sample in crops] == [2, 4, 3]
    assert points.points.abs().max() < 1
    assert 0 <= points.features.min() <= points.features.max() <= 1
    octree = octree_of(11, 2, batch_size=3)
    octree.build_octree(points)
    assert octree.nnum_nempty[11] == 9, "each point has a cell of its own"
    assert octree.features[11].sum(dim=0).tolist() == pytest.approx(points.features.sum(dim=0).tolist())


def test_colours_of_an_unknown_range_are_refused() -> None:
    samples = make_samples()
    for step in (NormalizeColor(), NormalizeColor((0, 0, 0), (1, 1, 1)), NormalizeColor((0.5,) * 3, (0.25,) * 3)):
        batch = collate_torch([step(sample, np.random.default_rng(0)) for sample in samples])
        batch["grid"] = batch["points"].int()
        for convert in (to_pointcept, *([to_pyg] if find_spec("torch_geometric") else [])):
            with pytest.raises(UsageError, match=r"colors are torch.float32 from .* but not those of Normalize"):
                convert(batch)
    batch["colors"] = (torch.arange(256.0).expand(3, -1).T / 127.5 - 1).half()
    feat = to_pointcept({**batch, "normals": torch.zeros(256, 3)})["feat"]
    assert feat[:, 0].tolist() == pytest.approx([level / 255 for level in range(256)], abs=5e-4)

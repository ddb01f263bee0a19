"""Scores of predictions, as the benchmark and the programs of the field report them.

Everything here works on arrays; `predictions` reads them from files.
"""

from scannet_prep.evaluation.instance import InstanceScores
from scannet_prep.evaluation.overlaps import InstancePrediction, InstanceTruth
from scannet_prep.evaluation.scores import ScoreTable
from scannet_prep.evaluation.semantic import SemanticScores

__all__ = [
    "InstancePrediction",
    "InstanceScores",
    "InstanceTruth",
    "ScoreTable",
    "SemanticScores",
]

"""An archive in, the folder that it was made from out: `plan` and `run` for files, `run_pipe` for pipes."""

from scannet_prep.archive.stream import PipeReader
from scannet_prep.stages.unpack.pipe import run_pipe
from scannet_prep.stages.unpack.planning import UnpackPlan, plan
from scannet_prep.stages.unpack.report import UnpackReport
from scannet_prep.stages.unpack.running import run

__all__ = ["PipeReader", "UnpackPlan", "UnpackReport", "plan", "run", "run_pipe"]

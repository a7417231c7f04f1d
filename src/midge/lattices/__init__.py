"""Recognition lattices: the three parts together, summed, searched and sampled."""

from midge.kernels import engine_name
from midge.lattices.greedy import greedy_path
from midge.lattices.marginals import ArcMarginals
from midge.lattices.paths import Path
from midge.lattices.pushing import PushedArcs
from midge.lattices.recognition import RecognitionLattice

__all__ = ["ArcMarginals", "Path", "PushedArcs", "RecognitionLattice", "engine_name", "greedy_path"]

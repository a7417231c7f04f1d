"""Recognition lattices: the three parts together, summed, searched and sampled."""

from midge.kernels import engine_name
from midge.lattices.greedy import greedy_path
from midge.lattices.incremental import BestPathSearch
from midge.lattices.marginals import ArcMarginals
from midge.lattices.paths import Path
from midge.lattices.pushing import PushedArcs
from midge.lattices.recognition import RecognitionLattice
from midge.lattices.search_state import Hypothesis, SearchState

__all__ = [
    "ArcMarginals",
    "BestPathSearch",
    "Hypothesis",
    "Path",
    "PushedArcs",
    "RecognitionLattice",
    "SearchState",
    "engine_name",
    "greedy_path",
]

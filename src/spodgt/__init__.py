"""Decentralized federated learning over directed graphs, when clients and links come and go."""

from spodgt import _first, problems  # _first comes before torch
from spodgt.algorithms import ALGORITHMS, method, register
from spodgt.algorithms.ab_push_pull import ABPushPull
from spodgt.algorithms.g_push_pull import GPushPull
from spodgt.algorithms.k_gt import KGT
from spodgt.algorithms.spod_gt import SpodGT
from spodgt.algorithms.spod_gt_importance import SpodGTImportance
from spodgt.algorithms.spod_gt_memory import SpodGTMemory
from spodgt.algorithms.sporadic_k_gt import SporadicKGT
from spodgt.network import Network
from spodgt.network import recipes as graphs
from spodgt.participation import Always, Bernoulli, Beta, EveryK, OneLink, Trace
from spodgt.problems import Learning, Quadratic
from spodgt.training import compare, train
from spodgt.training.result import Result

__all__ = [
    "ALGORITHMS",
    "KGT",
    "ABPushPull",
    "Always",
    "Bernoulli",
    "Beta",
    "EveryK",
    "GPushPull",
    "Learning",
    "Network",
    "OneLink",
    "Quadratic",
    "Result",
    "SpodGT",
    "SpodGTImportance",
    "SpodGTMemory",
    "SporadicKGT",
    "Trace",
    "compare",
    "graphs",
    "method",
    "problems",
    "register",
    "train",
]

_first.done()

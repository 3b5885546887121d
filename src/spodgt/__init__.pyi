"""Types of the public names; `__init__.py` imports them on first use."""

from spodgt import errors, figures, problems, theory
from spodgt.algorithms import ALGORITHMS, Algorithm, method, register
from spodgt.algorithms.ab import AB
from spodgt.algorithms.ab_push_pull import ABPushPull
from spodgt.algorithms.ad_psgd import ADPSGD
from spodgt.algorithms.asy_sonata import AsySONATA
from spodgt.algorithms.d2 import D2
from spodgt.algorithms.dfedavg import DFedAvg
from spodgt.algorithms.diging import DIGing
from spodgt.algorithms.dsgd import DSGD
from spodgt.algorithms.dspodfl import DSpodFL
from spodgt.algorithms.extra import Extra
from spodgt.algorithms.fedavg import FedAvg
from spodgt.algorithms.frost import Frost
from spodgt.algorithms.g_push_pull import GPushPull
from spodgt.algorithms.gossip import Gossip
from spodgt.algorithms.gossip_push_pull import GossipPushPull
from spodgt.algorithms.gsgt import GSGT
from spodgt.algorithms.gt_dsgd import GTDSGD
from spodgt.algorithms.k_gt import KGT
from spodgt.algorithms.local_gt import LocalGT
from spodgt.algorithms.local_sgd import LocalSGD
from spodgt.algorithms.local_sgp import LocalSGP
from spodgt.algorithms.mifa import MIFA
from spodgt.algorithms.next import Next
from spodgt.algorithms.osgp import OSGP
from spodgt.algorithms.push_diging import PushDIGing
from spodgt.algorithms.push_pull import PushPull
from spodgt.algorithms.relay import Relay
from spodgt.algorithms.relay_sum import RelaySum
from spodgt.algorithms.scaffold import SCAFFOLD
from spodgt.algorithms.sgd import SGD
from spodgt.algorithms.sgp import SGP
from spodgt.algorithms.spod_gt import SpodGT
from spodgt.algorithms.spod_gt_importance import SpodGTImportance
from spodgt.algorithms.spod_gt_memory import SpodGTMemory
from spodgt.algorithms.sporadic_k_gt import SporadicKGT
from spodgt.algorithms.subgradient_push import SubgradientPush
from spodgt.algorithms.tracked_diloco import TrackedDiloco
from spodgt.experiment import EarlyStopping, Experiment
from spodgt.network import GraphFile, Network, graphs
from spodgt.participation import (
    Always,
    Bernoulli,
    Beta,
    Bursts,
    DayNight,
    EveryK,
    GilbertElliott,
    Intersection,
    Markov,
    OneLink,
    Outages,
    Participation,
    Trace,
    TraceFile,
)
from spodgt.problems import Learning, Quadratic
from spodgt.problems.data import partitions
from spodgt.runtimes.events.durations import Time
from spodgt.sites.api import join
from spodgt.sweeps.api import sweep
from spodgt.sweeps.tune import Search, tune
from spodgt.training import STOP, Result, compare, loggers, run, train

__version__: str

__all__ = [
    "AB",
    "ADPSGD",
    "ALGORITHMS",
    "D2",
    "DSGD",
    "GSGT",
    "GTDSGD",
    "KGT",
    "MIFA",
    "OSGP",
    "SCAFFOLD",
    "SGD",
    "SGP",
    "STOP",
    "ABPushPull",
    "Algorithm",
    "Always",
    "AsySONATA",
    "Bernoulli",
    "Beta",
    "Bursts",
    "DFedAvg",
    "DIGing",
    "DSpodFL",
    "DayNight",
    "EarlyStopping",
    "EveryK",
    "Experiment",
    "Extra",
    "FedAvg",
    "Frost",
    "GPushPull",
    "GilbertElliott",
    "Gossip",
    "GossipPushPull",
    "GraphFile",
    "Intersection",
    "Learning",
    "LocalGT",
    "LocalSGD",
    "LocalSGP",
    "Markov",
    "Network",
    "Next",
    "OneLink",
    "Outages",
    "Participation",
    "PushDIGing",
    "PushPull",
    "Quadratic",
    "Relay",
    "RelaySum",
    "Result",
    "Search",
    "SpodGT",
    "SpodGTImportance",
    "SpodGTMemory",
    "SporadicKGT",
    "SubgradientPush",
    "Time",
    "Trace",
    "TraceFile",
    "TrackedDiloco",
    "compare",
    "errors",
    "figures",
    "graphs",
    "join",
    "loggers",
    "method",
    "partitions",
    "problems",
    "register",
    "run",
    "sweep",
    "theory",
    "train",
    "tune",
]

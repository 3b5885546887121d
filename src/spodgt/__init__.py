"""Decentralized federated learning over directed graphs with intermittent clients and links.

Public names are imported on first use, so that importing the package itself is fast. Their types
are in `__init__.pyi`.
"""

from __future__ import annotations

from importlib import import_module, metadata

from spodgt._util.deprecation import renamed_attribute

_MODULES = {
    "errors": "spodgt.errors",
    "figures": "spodgt.figures",
    "graphs": "spodgt.network.graphs",
    "loggers": "spodgt.training.loggers",
    "partitions": "spodgt.problems.data.partitions",
    "problems": "spodgt.problems",
    "theory": "spodgt.theory",
}
_NAMES = {
    "spodgt.algorithms": "ALGORITHMS Algorithm method register",
    "spodgt.experiment": "EarlyStopping Experiment",
    "spodgt.network": "GraphFile Network",
    "spodgt.participation": (
        "Always Bernoulli Beta Bursts DayNight EveryK GilbertElliott Intersection Markov OneLink "
        "Outages Participation Trace TraceFile"
    ),
    "spodgt.problems": "Learning Quadratic",
    "spodgt.runtimes.events.durations": "Time",
    "spodgt.sites.api": "join",
    "spodgt.sweeps.api": "sweep",
    "spodgt.sweeps.tune": "Search tune",
    "spodgt.training": "STOP Result compare run train",
}
_METHODS = {  # the class of each method in `spodgt.algorithms`, by its module
    "ab": "AB",
    "ab_push_pull": "ABPushPull",
    "ad_psgd": "ADPSGD",
    "asy_sonata": "AsySONATA",
    "d2": "D2",
    "dfedavg": "DFedAvg",
    "diging": "DIGing",
    "dsgd": "DSGD",
    "dspodfl": "DSpodFL",
    "extra": "Extra",
    "fedavg": "FedAvg",
    "frost": "Frost",
    "g_push_pull": "GPushPull",
    "gossip": "Gossip",
    "gossip_push_pull": "GossipPushPull",
    "gsgt": "GSGT",
    "gt_dsgd": "GTDSGD",
    "k_gt": "KGT",
    "local_gt": "LocalGT",
    "local_sgd": "LocalSGD",
    "local_sgp": "LocalSGP",
    "scaffold": "SCAFFOLD",
    "tracked_diloco": "TrackedDiloco",
    "mifa": "MIFA",
    "next": "Next",
    "osgp": "OSGP",
    "push_diging": "PushDIGing",
    "push_pull": "PushPull",
    "relay": "Relay",
    "relay_sum": "RelaySum",
    "sgd": "SGD",
    "sgp": "SGP",
    "spod_gt": "SpodGT",
    "spod_gt_importance": "SpodGTImportance",
    "spod_gt_memory": "SpodGTMemory",
    "sporadic_k_gt": "SporadicKGT",
    "subgradient_push": "SubgradientPush",
}
_RENAMED = {"Together": "spodgt.participation.Intersection"}

_MODULE_OF = {name: f"spodgt.algorithms.{module}" for module, name in _METHODS.items()}
for _module, _names in _NAMES.items():
    _MODULE_OF.update(dict.fromkeys(_names.split(), _module))

__all__ = sorted([*_MODULES, *_MODULE_OF])  # noqa: PLE0605 - listed in the stub


def __getattr__(name: str) -> object:
    if name == "__version__":
        value: object = metadata.version("spodgt")
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    else:
        return renamed_attribute(__name__, name, _RENAMED)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

"""Networks: graph recipes, mixing weights, graph files."""

from spodgt.network.files import GraphFile
from spodgt.network.graph import Digraph
from spodgt.network.graphs import RECIPES, GraphRecipe
from spodgt.network.mixing_weights import WEIGHT_RULES
from spodgt.network.network import Network, as_network, check_network
from spodgt.network.weighted_digraph import DENSE_LIMIT

NETWORKS: dict[str, type[GraphRecipe]] = {**RECIPES, GraphFile.name: GraphFile}  # kinds in a config

__all__ = [
    "DENSE_LIMIT",
    "NETWORKS",
    "WEIGHT_RULES",
    "Digraph",
    "GraphFile",
    "GraphRecipe",
    "Network",
    "as_network",
    "check_network",
]

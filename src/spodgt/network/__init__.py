"""Who can talk: graph recipes, networks with their mixing weights, graph files."""

from spodgt.network.files import GraphFile
from spodgt.network.links import Named
from spodgt.network.network import DENSE_LIMIT, Network, as_network, check_network
from spodgt.network.recipes import RECIPES, Recipe
from spodgt.network.weights import WEIGHTS

NETWORKS: dict[str, type[Recipe]] = {
    **RECIPES,
    GraphFile.name: GraphFile,
}  # all kinds a config knows

__all__ = [
    "DENSE_LIMIT",
    "NETWORKS",
    "WEIGHTS",
    "GraphFile",
    "Named",
    "Network",
    "Recipe",
    "as_network",
    "check_network",
]

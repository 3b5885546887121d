"""Models: shipped ones by name, and torch modules as flat rows of parameters."""

from spodgt.problems.models.registry import MODELS, cnn, linear, mlp, resnet18

__all__ = ["MODELS", "cnn", "linear", "mlp", "resnet18"]

"""An optimizer of `torch.optim` on the direction of a step, one for each client.

    x⁺ = … - η d        d: the update of torch.optim.NAME for the direction y at x, with lr = 1

The direction takes the place of the gradient, so in `local-gt` the optimizer receives g + y - c, in
FedAvg the client's gradient, in Spod-GT the tracker. Every client has its own optimizer state
(moments, number of steps), which is not sent and not reset by an exchange. Only optimizers with a
step proportional to `lr` are supported, so that η may be a schedule or one number per
client.

SGD, with or without momentum, keeps the fixed points of a method. Adam and its relatives keep them,
too, but with a constant step they end in a ball of the order of η around the optimum: use a
schedule. Weight decay of an optimizer is not in the trackers and moves the limit (`l2` is in them).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, S
from spodgt.algorithms.compose.direction_layer import DirectionLayer
from spodgt.algorithms.compose.wrapper import Memory
from spodgt.errors import InvalidInput

OPTIMIZERS = (
    "SGD",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "RMSprop",
    "Adagrad",
    "Adadelta",
)
Arguments = tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class OptimizerLayer(DirectionLayer[S]):
    """`base` with the steps of `torch.optim.<optimizer>(…, **arguments)`."""

    name = "optimizer"
    key = "optimizer"
    example = '"AdamW"'
    optimizer: str = "AdamW"
    arguments: Arguments = ()

    @classmethod
    def wrap(cls, base: Algorithm, value: object) -> Algorithm:
        """`base` with an optimizer: its name, or {"name": …} with arguments of its class."""
        if value is None or value is False or value == cls.off:
            return base
        if isinstance(value, str):
            return cls(base, value)
        if isinstance(value, Mapping) and "name" in value:
            arguments = {key: _to_hashable(value[key]) for key in value if key != "name"}
            return cls(base, value["name"], tuple(sorted(arguments.items())))
        raise InvalidInput(
            f'optimizer of {base.name} must be a name or a table such as {{name = "SGD", '
            f"momentum = 0.9}}, got {value!r}."
        )

    @property
    def value(self) -> object:
        if not self.arguments:
            return self.optimizer
        values = {key: list(v) if isinstance(v, tuple) else v for key, v in self.arguments}
        return {"name": self.optimizer, **values}

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise self.invalid(f"one of {', '.join(OPTIMIZERS)}", self.optimizer)
        self._check_arguments()
        state = _state_of_row(self.optimizer, self.arguments)
        names = [f"optimizer_{name}" for name in state]
        keeps_limit = self.optimizer == "SGD" and not dict(self.arguments).get("weight_decay")
        exact = self.base.traits.exact if keeps_limit else "no"
        suffix = self.optimizer.lower()
        self.set_traits(suffix, *names, "optimizer_started", rule=None, exact=exact)

    def _check_arguments(self) -> None:
        known = list(inspect.signature(getattr(torch.optim, self.optimizer)).parameters)[2:]
        for key, value in self.arguments:
            if key == "lr":
                raise InvalidInput(f"lr={value!r} of {self.optimizer} is step_size; use step_size.")
            if key not in known:
                raise InvalidInput(
                    f"{key}={value!r} is not an argument of torch.optim.{self.optimizer}; "
                    f"its arguments are {', '.join(known)}."
                )
        try:
            _create(self.optimizer, self.arguments, [torch.zeros(1)])
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"optimizer of {self.base.name}: {error}.") from error

    def initial_memory(self, x: Tensor) -> Memory:
        memory = []
        for is_scalar in _state_of_row(self.optimizer, self.arguments).values():
            columns = 1 if is_scalar else x.shape[1]
            memory.append(x.new_zeros(len(x), columns))
        return (*memory, x.new_zeros(len(x), 1))

    def transform(self, y: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        state = _state_of_row(self.optimizer, self.arguments)
        *tensors, started = memory
        models = x.clone()
        rows = list(models.unbind())  # views: a step changes `models`
        optimizer = _create(self.optimizer, self.arguments, rows)
        has_state = started.flatten().tolist()
        for index, row in enumerate(rows):
            row.grad = y[index]
            if has_state[index]:  # before its first step an optimizer makes its own state
                values = [tensor[index].clone() for tensor in tensors]
                optimizer.state[row] = _as_torch_state(state, values)
        optimizer.step()
        after = []
        for name, tensor in zip(state, tensors, strict=True):
            values = [optimizer.state[row][name].reshape(-1) for row in rows]
            after.append(torch.stack(values).to(tensor))
        return x - models, (*after, torch.ones_like(started))


def _create(name: str, arguments: Arguments, rows: list[Tensor]) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(rows, lr=1.0, **dict(arguments))
    return optimizer


@cache
def _state_of_row(name: str, arguments: Arguments) -> dict[str, bool]:
    """The tensors that an optimizer keeps for one parameter: whether each is a scalar, by name."""
    row = torch.zeros(3)
    row.grad = torch.ones(3)
    optimizer = _create(name, arguments, [row])
    optimizer.step()
    state = optimizer.state[row]
    tensors = [key for key in sorted(state) if isinstance(state[key], Tensor)]
    return {key: state[key].ndim == 0 for key in tensors}


def _as_torch_state(state: dict[str, bool], values: list[Tensor]) -> dict[str, Tensor]:
    """The entries of one row as an optimizer keeps them; scalars are (1,) in the memory."""
    torch_state = {}
    for (name, is_scalar), value in zip(state.items(), values, strict=True):
        torch_state[name] = value.reshape(()) if is_scalar else value
    return torch_state


def _to_hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value

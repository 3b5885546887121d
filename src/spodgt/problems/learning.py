"""Any `torch.nn.Module`, any loss, one dataset per client.

All samples lie in one tensor; a client is the list of its sample numbers, so a batch of runs shares
the data. A mini-batch is drawn without replacement, as a pure function of (seed, round, client).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from spodgt import rng
from spodgt.compiled import usable
from spodgt.data import Dataset, Partition
from spodgt.errors import InvalidData, InvalidInput
from spodgt.models import Loss
from spodgt.problems.engines import Engine, Layout, LinearEngine, check_call, choose, flatten
from spodgt.problems.linear import LOSSES, Draw, gradients
from spodgt.types import Evaluation, Ints

_PROBE = 4  # samples used to try a module out
_CHUNK = 2**24  # numbers in one evaluated block: 64 MB of float32


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and targets of many samples; uint8 inputs become floats in [0, 1] when they are used."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: Tensor | slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        inputs = self.inputs[rows]
        if inputs.dtype == torch.uint8:
            inputs = inputs.to(dtype).div_(255)
        elif inputs.is_floating_point():
            inputs = inputs.to(dtype)
        return inputs, self.targets[rows]

    def to(self, device: torch.device) -> Samples:
        return Samples(self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True, eq=False)
class Shares:
    """Which samples each client holds: one long list of sample numbers, cut at `offsets`."""

    numbers: Ints  # (all shares together,)
    offsets: Ints  # (clients + 1,)

    @staticmethod
    def of(parts: Sequence[Ints]) -> Shares:
        return Shares(np.concatenate(parts), np.cumsum([0, *map(len, parts)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)

    def __getitem__(self, client: int) -> Ints:
        return self.numbers[self.offsets[client] : self.offsets[client + 1]]

    @staticmethod
    def join(parts: Sequence[Shares]) -> Shares:
        sizes = np.concatenate([part.sizes for part in parts])
        return Shares(np.concatenate([part.numbers for part in parts]), np.r_[0, np.cumsum(sizes)])


@dataclass(frozen=True, eq=False)
class Learning:
    """A model trained by clients that each hold their own data.

    `clients` is one dataset per client: a map-style `torch.utils.data.Dataset`, or a pair of tensors
    (inputs, targets). uint8 inputs are scaled to [0, 1]. Models start from the module's own
    initialisation, drawn per seed, equal on all clients; `keep_weights=True` starts from the module as
    it is, `same_start=False` draws one start per client. `batch_size=None` takes full gradients.
    """

    model: nn.Module
    loss: Loss
    clients: Any
    test: Any = None
    batch_size: int | None = 16
    keep_weights: bool = False
    same_start: bool = True
    # What the arguments above become; `join`, `to` and `draw` pass these on.
    samples: Samples = field(init=False, repr=False)
    shares: Shares = field(init=False, repr=False)
    test_samples: Samples | None = field(init=False, repr=False)
    engine: Engine = field(init=False, repr=False)
    layout: Layout = field(init=False, repr=False)
    partition: Partition | None = field(init=False, repr=False, default=None)
    dtype: torch.dtype = field(init=False, repr=False, default=torch.float32)

    def __post_init__(self) -> None:
        size = self.batch_size
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise InvalidInput(f"batch_size must be a whole number of at least 1 or None, got {size!r}; use 16.")
        if not isinstance(self.model, nn.Module):
            raise InvalidInput(f"model must be a torch.nn.Module, got {type(self.model).__name__}.")
        if not callable(self.loss):
            raise InvalidInput(f"loss must be callable, got {type(self.loss).__name__}; use torch.nn.CrossEntropyLoss().")
        given = list(self.clients)
        if not given:
            raise InvalidData("clients must hold at least one dataset, got none.")
        parts = [_samples(data, f"client {i}") for i, data in enumerate(given)]
        for i, part in enumerate(parts):
            if part.inputs.shape[1:] != parts[0].inputs.shape[1:]:
                raise InvalidData(
                    f"client {i} has inputs of shape {tuple(part.inputs.shape[1:])}, client 0 of "
                    f"{tuple(parts[0].inputs.shape[1:])}; all clients must have the same."
                )
        bounds = np.cumsum([0, *map(len, parts)])
        shares = Shares(np.arange(bounds[-1]), bounds)
        whole = Samples(torch.cat([p.inputs for p in parts]), torch.cat([p.targets for p in parts]))
        self._settle(whole, shares, None if self.test is None else _samples(self.test, "test"))

    @classmethod
    def partitioned(
        cls,
        model: nn.Module,
        loss: Loss,
        data: Dataset,
        *,
        clients: int,
        partition: Partition,
        batch_size: int | None = 16,
        keep_weights: bool = False,
        same_start: bool = True,
    ) -> Learning:
        """One dataset divided among `clients`, anew for every seed."""
        # A placeholder client makes the checks of the constructor apply; `draw` gives the real ones.
        train = Samples(data.train.inputs, data.train.targets)
        problem = cls(
            model,
            loss,
            [(train.inputs[:_PROBE], train.targets[:_PROBE])],
            batch_size=batch_size,
            keep_weights=keep_weights,
            same_start=same_start,
        )
        problem._set(
            samples=train,
            test_samples=Samples(data.test.inputs, data.test.targets),
            partition=partition,
            clients=clients,
        )
        return problem.draw(0)  # fails here, not in the first round, if the partition cannot be made

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _settle(self, samples: Samples, shares: Shares, test: Samples | None) -> None:
        model = copy.deepcopy(self.model).eval()
        if not any(p.numel() for p in model.parameters()):
            raise InvalidInput("model must have parameters to train, got none.")
        inputs, targets = samples.take(slice(0, _PROBE), torch.float32)

        def attempt() -> Tensor:
            loss = self.loss(model.float()(inputs), targets)
            if loss.ndim:
                raise InvalidInput(
                    f"loss must return one number, got shape {tuple(loss.shape)}; use reduction='mean'."
                )
            return loss

        check_call(attempt, "model and loss")
        engine = choose(model, self.loss, inputs, targets)
        self._set(
            clients=len(shares), samples=samples, shares=shares, test_samples=test, engine=engine, layout=Layout.of(model)
        )

    def _with(self, **values: Any) -> Learning:
        other = copy.copy(self)
        other._set(**values)
        return other

    # --- Problem -------------------------------------------------------------------------------
    @property
    def parameters(self) -> int:
        return self.layout.size

    @property
    def work(self) -> float:
        return float(len(self.shares.numbers)) * self.parameters

    def draw(self, seed: int) -> Learning:
        if self.partition is None:
            return self
        parts = self.partition.split(self.samples.targets.cpu(), self.clients, seed)
        return self._with(shares=Shares.of(parts))

    def start(self, seed: int) -> Tensor:
        if self.keep_weights:
            return flatten(self.model).expand(self.clients, -1).clone()
        if self.same_start:
            return self._initial(seed, 0).expand(self.clients, -1).clone()
        return torch.stack([self._initial(seed, client) for client in range(self.clients)])

    def _initial(self, seed: int, client: int) -> Tensor:
        """The module's own initialisation under a generator of (seed, client)."""
        module = copy.deepcopy(self.model)
        with torch.random.fork_rng():
            torch.manual_seed(rng.torch_generator(seed, "start", client).initial_seed())
            for part in module.modules():
                reset = getattr(part, "reset_parameters", None)
                if callable(reset):
                    reset()
        return flatten(module)

    def join(self, others: Sequence[Learning]) -> Learning:
        if any(other.samples is not self.samples for other in others):
            raise InvalidInput("runs of one batch must share their data; train them in separate calls.")
        shares = Shares.join([self.shares, *(other.shares for other in others)])
        return self._with(shares=shares, clients=len(shares))

    def to(self, device: torch.device, dtype: torch.dtype) -> Learning:
        return self._with(
            samples=self.samples.to(device) if device.type != "cpu" else self.samples,
            test_samples=self.test_samples and self.test_samples.to(device),
            dtype=dtype,
        )

    def grad(self, x: Tensor, rows: Ints, keys: NDArray[np.uint64], places: Ints, k: int) -> Tensor:
        sizes, batch = self.shares.sizes[rows], self._batch(rows)
        g = torch.empty_like(x)
        if self.grad_into(x, g, None, np.arange(len(x)), Draw(rows, keys, places, k), np.ones(len(x))):
            return g
        for size in np.unique(batch):  # one group, unless some client holds less than a batch
            same = np.flatnonzero(batch == size)
            drawn = without_replacement(keys[same], places[same], k, sizes[same], int(size))
            chosen = self.shares.numbers[self.shares.offsets[rows[same], None] + drawn]
            inputs, targets = self.samples.take(torch.from_numpy(chosen).to(x.device), x.dtype)
            noise = [int(word >> np.uint64(1)) for word in rng.words(keys[same], k, places[same], 2**32)]
            everyone = len(same) == len(rows)
            part = self.engine.grads(x if everyone else x[same], inputs, targets, noise)
            if everyone:
                return part
            g[same] = part
        return g

    def grad_into(
        self, x: Tensor, g: Tensor, y: Tensor | None, models: Ints, draw: Draw, weight: NDArray[np.float64]
    ) -> bool:
        """For linear models: g[models] ← weight ⊙ gradients at x[models], and add their change to y[models].

        False where the compiled pass does not fit; then nothing was done.
        """
        engine, whole = self.engine, self.samples.inputs
        if not isinstance(engine, LinearEngine) or engine.loss not in LOSSES or not usable(x, g):
            return False
        if not whole.is_contiguous() or whole.dtype not in (torch.uint8, x.dtype):
            return False
        data = self.shares.numbers, self.shares.offsets, whole.flatten(1).numpy(), self.samples.targets.numpy()
        layer = engine.classes, engine.bias, LOSSES[engine.loss]
        batch = self._batch(draw.rows)
        for size in np.unique(batch):
            same = slice(None) if (batch == size).all() else np.flatnonzero(batch == size)
            gradients(x, g, y, models[same], draw.part(same), data, layer, int(size), weight[same])
        return True

    def _batch(self, rows: Ints) -> Ints:
        """How many samples each of the clients draws: fewer than a batch where it holds fewer."""
        sizes = self.shares.sizes[rows]
        return sizes if self.batch_size is None else np.minimum(sizes, self.batch_size)

    def full(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]:
        losses, grads = torch.zeros(len(rows), dtype=x.dtype), torch.zeros_like(x)
        for n, row in enumerate(rows):
            share = torch.from_numpy(self.shares[row]).to(x.device)
            for piece in share.split(self._block(1)):
                inputs, targets = (t[None] for t in self.samples.take(piece, x.dtype))
                weight = len(piece) / len(share)
                losses[n] += weight * float(self.engine.losses(x[n : n + 1], inputs, targets)[0])
                grads[n] += weight * self.engine.grads(x[n : n + 1], inputs, targets, [0])[0]
        return losses, grads

    def evaluate(self, x: Tensor) -> Evaluation:
        nothing = torch.full((len(x),), torch.nan, dtype=torch.float64)
        if self.test_samples is None:
            return Evaluation(nothing, nothing)
        loss, right = torch.zeros_like(nothing), torch.zeros_like(nothing)
        with torch.no_grad():
            for start in range(0, len(self.test_samples), self._block(len(x))):
                piece = slice(start, start + self._block(len(x)))
                inputs, targets = self.test_samples.take(piece, x.dtype)
                outputs = self.engine.outputs(x, inputs)
                weight = len(targets) / len(self.test_samples)
                loss += weight * torch.stack([self.loss(o, targets) for o in outputs]).double().cpu()
                if outputs.ndim == 3 and not targets.is_floating_point():
                    right += weight * (outputs.argmax(-1) == targets).double().mean(-1).cpu()
                else:
                    right += torch.nan
        return Evaluation(loss, right)

    def _block(self, models: int) -> int:
        return max(1, _CHUNK // max(1, self.samples.inputs[0].numel(), models * 64))


def without_replacement(keys: NDArray[np.uint64], places: Ints, k: int, sizes: Ints, count: int) -> Ints:
    """For every row `count` distinct whole numbers below its size (Floyd's sampling, all rows at once)."""
    if (sizes == count).all():
        return np.broadcast_to(np.arange(count), (len(sizes), count))
    u = rng.uniform(keys[:, None], k, places[:, None], np.arange(count)[None])
    chosen = np.empty((len(sizes), count), np.int64)
    for column in range(count):
        top = sizes - count + column
        pick = (u[:, column] * (top + 1)).astype(np.int64)
        taken = (chosen[:, :column] == pick[:, None]).any(1)
        chosen[:, column] = np.where(taken, top, pick)
    return chosen


def _samples(data: Any, who: str) -> Samples:
    """Read a dataset into two tensors."""
    if isinstance(data, torch.utils.data.TensorDataset):
        data = data.tensors
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(t, Tensor) for t in data):
        inputs, targets = data
    else:
        try:
            pairs = [data[i] for i in range(len(data))]
            inputs = torch.stack([torch.as_tensor(np.asarray(first)) for first, _ in pairs])
            targets = torch.as_tensor(np.asarray([np.asarray(second) for _, second in pairs]))
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidData(
                f"{who} must be a dataset of (input, target) pairs of equal shape or two tensors, "
                f"got {type(data).__name__}: {str(error).splitlines()[0] if str(error) else 'empty'}."
            ) from None
    if len(inputs) != len(targets):
        raise InvalidData(f"{who} has {len(inputs)} inputs but {len(targets)} targets; give one target per input.")
    if not len(inputs):
        raise InvalidData(f"{who} has no samples; give it data or leave it out of the network.")
    if inputs.is_floating_point() and not torch.isfinite(inputs).all():
        raise InvalidData(f"{who} has inputs that are NaN or infinite; clean the data.")
    return Samples(inputs.contiguous(), targets.contiguous())

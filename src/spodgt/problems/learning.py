"""Any `torch.nn.Module`, any loss, one dataset per client.

All samples lie in one tensor; a client is the list of its sample numbers, so a batch of runs holdings
the data. A mini-batch is drawn without replacement, as a pure function of (seed, round, client).

Running statistics (BatchNorm's) are columns behind the parameters in the models a problem is given, and
only there: the round keeps them apart from x, so no method can put them into a tracker or a step.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from spodgt import rng
from spodgt.compiled import usable
from spodgt.errors import InvalidData, InvalidInput
from spodgt.problems.augment import Windows, crop_and_flip
from spodgt.problems.data import Dataset, Partition
from spodgt.problems.gradients import Engine
from spodgt.problems.gradients.choose import check_call, choose, multiplications, side_effects
from spodgt.problems.gradients.layout import Layout, flatten
from spodgt.problems.gradients.linear import LinearEngine, grade, gradients
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.losses import LOSSES, Loss, mass, stacked_loss
from spodgt.problems.samples import CHUNK, Holdings, Samples, read_samples, without_replacement
from spodgt.types import Evaluation, Floats, Ints, LinearData, Minibatches

_PROBE = 4  # samples used to try a module out
_PICTURES = 128  # samples in a block of a deep network: what lies between layers should stay in the cache


@dataclass(frozen=True, eq=False)
class Learning:
    """A model trained by clients that each hold their own data.

    `clients` is one dataset per client: a map-style `torch.utils.data.Dataset`, or a pair of tensors
    (inputs, targets). uint8 inputs are scaled to [0, 1]. Models start from the module's own
    initialisation, drawn per seed, equal on all clients; `keep_weights=True` starts from the module as
    it is, `same_start=False` draws one start per client. `batch_size` is one number or one per client;
    None takes full gradients.

    `augment=True` trains on random crops and mirror images. `buffers="pull"` allows a model that keeps
    running statistics, such as BatchNorm's: each client has its own, they are exchanged with its model,
    and they are never part of a gradient.
    """

    model: nn.Module
    loss: Loss
    clients: Any
    test: Any = None
    batch_size: int | Sequence[int] | None = 16
    keep_weights: bool = False
    same_start: bool = True
    augment: bool = False
    buffers: Literal["pull"] | None = None
    # What the arguments above become; `join`, `to` and `draw` pass these on.
    samples: Samples = field(init=False, repr=False)
    holdings: Holdings = field(init=False, repr=False)
    test_samples: Samples | None = field(init=False, repr=False)
    engine: Engine = field(init=False, repr=False)
    layout: Layout = field(init=False, repr=False)
    running: Layout = field(init=False, repr=False)  # the running statistics behind the parameters
    effort: int = field(init=False, repr=False)  # multiplications for one sample
    partition: Partition | None = field(init=False, repr=False, default=None)
    dtype: torch.dtype = field(init=False, repr=False, default=torch.float32)

    def __post_init__(self) -> None:
        self._set(batch_size=_batch_size(self.batch_size))
        if not isinstance(self.model, nn.Module):
            raise InvalidInput(f"model must be a torch.nn.Module, got {type(self.model).__name__}.")
        if not callable(self.loss):
            raise InvalidInput(
                f"loss must be callable, got {type(self.loss).__name__}; use torch.nn.CrossEntropyLoss()."
            )
        if self.buffers not in (None, "pull"):
            raise InvalidInput(f"buffers must be 'pull' or None, got {self.buffers!r}; use buffers='pull'.")
        given = list(self.clients)
        if not given:
            raise InvalidData("clients must hold at least one dataset, got none.")
        parts = [read_samples(data, f"client {i}") for i, data in enumerate(given)]
        test = None if self.test is None else read_samples(self.test, "test")
        for i, part in enumerate(parts):
            _check_alike(part, f"client {i}", parts[0])
            kinds = [each.inputs.dtype for each in (part, parts[0])]
            if (kinds[0] == torch.uint8) != (kinds[1] == torch.uint8):  # of these, only bytes are scaled
                raise InvalidData(
                    f"client {i} has inputs of {kinds[0]}, client 0 of {kinds[1]}; all must have the same."
                )
        if test is not None:
            _check_alike(test, "test", parts[0])
        bounds = np.cumsum([0, *map(len, parts)])
        holdings = Holdings(np.arange(bounds[-1]), bounds)
        whole = Samples(torch.cat([p.inputs for p in parts]), torch.cat([p.targets for p in parts]))
        self._settle(whole, holdings, test)
        self._check_batches()

    @classmethod
    def partitioned(
        cls,
        model: nn.Module,
        loss: Loss,
        data: Dataset,
        *,
        clients: int,
        partition: Partition,
        batch_size: int | Sequence[int] | None = 16,
        keep_weights: bool = False,
        same_start: bool = True,
        augment: bool = False,
        buffers: Literal["pull"] | None = None,
    ) -> Learning:
        """One dataset divided among `clients`, anew for every seed."""
        # A placeholder client makes the checks of the constructor apply; `draw` gives the real ones.
        train = Samples(data.train.inputs, data.train.targets)
        problem = cls(
            model,
            loss,
            [(train.inputs[:_PROBE], train.targets[:_PROBE])],
            keep_weights=keep_weights,
            same_start=same_start,
            augment=augment,
            buffers=buffers,
        )
        problem._set(
            samples=train,
            test_samples=Samples(data.test.inputs, data.test.targets),
            partition=partition,
            clients=clients,
            batch_size=_batch_size(batch_size),
        )
        problem._check_batches()
        with torch.no_grad():
            probe, _ = train.take(slice(0, _PROBE), torch.float32)
            problem._check_targets(copy.deepcopy(model).float().eval()(probe).shape[-1])
        return problem.draw(0)  # fails here, not in the first round, if the partition cannot be made

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _settle(self, samples: Samples, holdings: Holdings, test: Samples | None) -> None:
        model = copy.deepcopy(self.model).eval()
        if not any(p.numel() for p in model.parameters() if p.requires_grad):
            raise InvalidInput("model must have parameters to train, got none.")
        if self.augment and samples.inputs.ndim != 4:
            shape = tuple(samples.inputs.shape[1:])
            raise InvalidInput(
                f"augment=True needs images (channels, height, width), got inputs of shape {shape}; "
                "use augment=False."
            )
        inputs, targets = samples.take(slice(0, _PROBE), torch.float32)

        def attempt() -> Tensor:
            loss = self.loss(model.float()(inputs), targets)
            if loss.ndim:
                raise InvalidInput(
                    f"loss must return one number, got shape {tuple(loss.shape)}; use reduction='mean'."
                )
            return loss

        check_call(attempt, "model and loss")
        self._set(samples=samples, holdings=holdings, test_samples=test)
        self._check_targets(model(inputs).shape[-1])
        running, random = side_effects(model, inputs)
        if running.names and self.buffers != "pull":
            raise InvalidInput(
                f"model must not change buffers while it trains, but {running.names[0]!r} changes; replace "
                'BatchNorm by torch.nn.GroupNorm, or use buffers="pull" to exchange them with the models.'
            )
        self._set(
            clients=len(holdings),
            samples=samples,
            holdings=holdings,
            test_samples=test,
            engine=choose(model, self.loss, inputs, targets, running, random=random),
            layout=Layout.of(model),
            running=running,
            effort=multiplications(model, inputs),
        )

    def _check_targets(self, classes: int) -> None:
        """Compiled losses trust that targets are classes of the model."""
        for who, part in (("train", self.samples), ("test", self.test_samples)):
            if part is None or stacked_loss(self.loss) is None or part.targets.ndim != 1:
                continue
            wrong = torch.nonzero((part.targets < 0) | (part.targets >= classes))
            if len(wrong):
                number = int(wrong[0])
                if who == "train":  # clients lie one after the other, unless a partition deals samples out
                    client = int(np.searchsorted(self.holdings.offsets, number, side="right")) - 1
                    who = f"client {client}" if self.partition is None else "train"
                raise InvalidData(
                    f"{who} has target {int(part.targets[number])}, but the model has {classes} outputs, so "
                    f"targets are 0 to {classes - 1}; relabel the data or give the model more outputs."
                )

    def _check_batches(self) -> None:
        if isinstance(self.batch_size, tuple) and len(self.batch_size) != self.clients:
            raise InvalidInput(
                f"batch_size must be one number or {self.clients} (one per client), "
                f"got {len(self.batch_size)}; use 16."
            )

    def with_batch_size(self, batch_size: int | Sequence[int] | None) -> Learning:
        """The same problem with other mini-batches."""
        other = self._with(batch_size=_batch_size(batch_size))
        other._check_batches()
        return other

    def with_holdings(self, holdings: Holdings) -> Learning:
        """The same problem with other clients: each holds the samples given here, for every seed."""
        other = self._with(holdings=holdings, clients=len(holdings), partition=None)
        other._check_batches()
        return other

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
        return float(len(self.holdings.numbers)) * self.effort

    def draw(self, seed: int) -> Learning:
        if self.partition is None:
            return self
        parts = self.partition.split(self.samples.targets.cpu(), self.clients, seed)
        return self._with(holdings=Holdings.of(parts))

    def start(self, seed: int) -> Tensor:
        starts = 1 if self.same_start or self.keep_weights else self.clients
        models = [flatten(self._initial(seed, client).parameters()) for client in range(starts)]
        return torch.stack(models).expand(self.clients, -1)

    def statistics(self, seed: int) -> Tensor:
        buffers = dict(self._initial(seed, 0).named_buffers()) if self.running.names else {}
        return flatten(buffers[name] for name in self.running.names).expand(self.clients, -1)

    def _initial(self, seed: int, client: int) -> nn.Module:
        """The module with its own initialisation under a generator of (seed, client)."""
        module = copy.deepcopy(self.model)
        if self.keep_weights:
            return module
        with torch.random.fork_rng():
            torch.manual_seed(rng.torch_generator(seed, "start", client).initial_seed())
            for part in module.modules():
                reset = getattr(part, "reset_parameters", None)
                if callable(reset):
                    reset()
        return module

    def join(self, others: Sequence[Learning]) -> Learning:
        if any(other.samples is not self.samples for other in others):
            raise InvalidInput("runs of one batch must share their data; train them in separate calls.")
        holdings = Holdings.join([self.holdings, *(other.holdings for other in others)])
        sizes = self.batch_size
        if any(isinstance(part.batch_size, tuple) or part.batch_size != sizes for part in (self, *others)):
            sizes = tuple(int(n) for part in (self, *others) for n in part.batches(np.arange(part.clients)))
        return self._with(holdings=holdings, clients=len(holdings), batch_size=sizes)

    def to(self, device: torch.device, dtype: torch.dtype) -> Learning:
        loss, engine = self.loss, self.engine
        if isinstance(loss, nn.Module) and list(loss.buffers()):  # class weights come along
            loss = copy.deepcopy(loss).to(device, dtype)
            engine = replace(engine, loss=loss)  # type: ignore[type-var]
        return self._with(
            loss=loss,
            engine=engine,
            samples=self.samples.to(device) if device.type != "cpu" else self.samples,
            test_samples=self.test_samples and self.test_samples.to(device),
            dtype=dtype,
        )

    @property
    def identity(self) -> tuple[dict[str, str], list[Any]]:
        """What tells this problem from another: its settings in words, and its numbers."""
        loss = str(self.loss) if isinstance(self.loss, nn.Module) else getattr(self.loss, "__name__", "")
        settings = {"batch_size": self.batch_size, "loss": loss, "augment": self.augment, "model": self.model}
        parts = [self.samples] if self.test_samples is None else [self.samples, self.test_samples]
        arrays = [array for part in parts for array in (part.inputs, part.targets)]
        words = {name: str(value) for name, value in settings.items()}
        return words, [*arrays, self.holdings.numbers, self.holdings.offsets]

    def grad(self, x: Tensor, batches: Minibatches) -> Tensor:
        rows, keys, places, k = batches
        sizes, batch = self.holdings.sizes[rows], self.batches(rows)
        self._check_columns(x)
        g = x.new_empty(len(x), self.parameters)  # its pages are taken only where something is written
        if self.grad_into(x, g, None, np.arange(len(x)), batches, np.ones(len(x))):
            return g
        for size in np.unique(batch):  # one group, unless some client holds less than a batch
            same = np.flatnonzero(batch == size)
            who = keys[same], places[same], k
            drawn = without_replacement(*who, sizes[same], int(size))
            chosen = torch.from_numpy(self.holdings.numbers[self.holdings.offsets[rows[same], None] + drawn])
            inputs, targets = (t[chosen.to(x.device)] for t in (self.samples.inputs, self.samples.targets))
            if self.augment:
                inputs = crop_and_flip(inputs, Windows.draw(*who, drawn))
            noise = [int(word >> np.uint64(1)) for word in rng.words(keys[same], k, places[same], 2**32)]
            everyone = len(same) == len(rows)
            models = x if everyone else x[same]
            part = self.engine.grads(models, self.samples.scaled(inputs, x.dtype), targets, noise)
            if everyone:
                return part
            g[same] = part
            if self.running.names:
                x[same] = models
        return g

    def grad_into(
        self, x: Tensor, g: Tensor, y: Tensor | None, models: Ints, batches: Minibatches, weight: Floats
    ) -> bool:
        """For linear models: g[models] ← weight ⊙ gradients at x[models], and add their change to y[models].

        False where the compiled pass does not fit; then nothing was done.
        """
        data = self.linear_data(x.dtype)
        if data is None or not usable(x, g):
            return False
        batch = self.batches(batches.rows)
        for size in np.unique(batch):
            same = slice(None) if (batch == size).all() else np.flatnonzero(batch == size)
            gradients(x, g, y, models[same], batches.part(same), data, int(size), weight[same])
        return True

    def linear_data(self, dtype: torch.dtype) -> LinearData | None:
        """What compiled loops need for models of this kind, None where they do not fit."""
        engine, whole = self.engine, self.samples.inputs
        if self.augment or not isinstance(engine, LinearEngine) or engine.loss not in LOSSES:
            return None
        if whole.device.type != "cpu" or not whole.is_contiguous() or whole.dtype not in (torch.uint8, dtype):
            return None
        return LinearData(
            self.holdings.numbers,
            self.holdings.offsets,
            whole.flatten(1).numpy(),
            self.samples.targets.numpy(),
            1 / 255 if whole.dtype == torch.uint8 else 1.0,
            engine.classes,
            engine.bias,
            LOSSES[engine.loss],
        )

    def batches(self, rows: Ints) -> Ints:
        """How many samples each of the clients draws: fewer than a batch where it holds fewer."""
        sizes = self.holdings.sizes[rows]
        wanted = np.asarray(self.batch_size)[rows] if isinstance(self.batch_size, tuple) else self.batch_size
        return sizes if wanted is None else np.minimum(sizes, wanted)

    def full(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]:
        self._check_columns(x)
        losses, grads = torch.zeros(len(rows), dtype=x.dtype), x.new_zeros(len(rows), self.parameters)
        for n, row in enumerate(rows):
            own = torch.from_numpy(self.holdings[row]).to(x.device)
            whole = mass(self.loss, self.samples.targets[own]) or 1.0
            for piece in torch.split(own, self._block(1)):
                inputs, targets = (t[None] for t in self.samples.take(piece, x.dtype))
                weight = mass(self.loss, targets[0]) / whole
                if not weight:
                    continue
                loss, slope = self.engine.with_losses(x[n : n + 1], inputs, targets, None)
                losses[n] += weight * float(loss[0])
                grads[n] += weight * slope[0]
        return losses, grads

    def evaluate(self, x: Tensor) -> Evaluation:
        self._check_columns(x)
        nothing = torch.full((len(x),), torch.nan, dtype=torch.float64)
        if self.test_samples is None:
            return Evaluation(nothing, nothing)
        loss, right = torch.zeros_like(nothing), torch.zeros_like(nothing)
        if isinstance(self.engine, LinearEngine) and self.engine.loss in LOSSES and usable(x):
            for start in range(0, len(self.test_samples), self._block(len(x))):
                piece = slice(start, start + self._block(len(x)))
                inputs, targets = self.test_samples.floats(piece, x.dtype), self.test_samples.targets[piece]
                grade(self.engine, x, inputs, targets, loss, right)
            return Evaluation(loss / len(self.test_samples), right / len(self.test_samples))
        whole = mass(self.loss, self.test_samples.targets) or 1.0
        with torch.no_grad():
            for start in range(0, len(self.test_samples), self._block(len(x))):
                piece = slice(start, start + self._block(len(x)))
                inputs, targets = self.test_samples.take(piece, x.dtype)
                outputs = self.engine.outputs(x, inputs)
                weight = len(targets) / len(self.test_samples)
                if weighs := mass(self.loss, targets) / whole:
                    loss += weighs * torch.stack([self.loss(o, targets) for o in outputs]).double().cpu()
                if outputs.ndim == 3 and not targets.is_floating_point():
                    right += weight * (outputs.argmax(-1) == targets).double().mean(-1).cpu()
                else:
                    right += torch.nan
        return Evaluation(loss, right)

    def _check_columns(self, x: Tensor) -> None:
        wanted = self.parameters + self.running.size
        if x.shape[1] != wanted:
            advice = (
                f", {self.running.size} of them running statistics; where a runtime does not carry these, "
                "use torch.nn.GroupNorm instead of BatchNorm"
            )
            raise InvalidInput(
                f"models must have {wanted} columns, got {x.shape[1]}{advice if self.running.names else ''}."
            )

    def _block(self, models: int) -> int:
        if isinstance(self.engine, LoopEngine):
            return _PICTURES
        return max(1, CHUNK // max(1, self.samples.inputs[0].numel(), models * 64))


def _check_alike(part: Samples, who: str, first: Samples) -> None:
    for what in ("inputs", "targets"):
        ours, theirs = getattr(part, what), getattr(first, what)
        if ours.shape[1:] != theirs.shape[1:]:
            shapes = tuple(ours.shape[1:]), tuple(theirs.shape[1:])
            raise InvalidData(
                f"{who} has {what} of shape {shapes[0]}, client 0 of {shapes[1]}; all must have the same."
            )


def _batch_size(given: Any) -> int | tuple[int, ...] | None:
    """Checked: a number, one per client, or None for everything."""
    several = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str)
    for size in given if several else [] if given is None else [given]:
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
            raise InvalidInput(
                f"batch_size must be a whole number of at least 1 or None, got {size!r}; use 16."
            )
    return tuple(int(size) for size in given) if several else given

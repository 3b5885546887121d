"""A module with its loss, ready to give the gradients of many clients.

Here a module is divided into what is exchanged, what stays with its client and what is frozen, and an engine
is chosen for it; `trial` tries it out.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor, nn

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.problems.client_data import ClientData
from spodgt.problems.gradients import Engine, Layout, flatten
from spodgt.problems.gradients.linear import LinearEngine
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.gradients.vmap import VmapEngine
from spodgt.problems.losses import Loss, stacked_loss
from spodgt.problems.objective import Accuracy, Objective
from spodgt.problems.samples import Loose, first_line
from spodgt.problems.starts import Init, check_init, initial
from spodgt.problems.trees import Tree, clone, seeded
from spodgt.problems.trial import Trial, copied, in_own_precision, multiplications, side_effects

Patterns = str | Sequence[str] | None
_NO_LAYERS = (nn.Sequential, nn.Flatten, nn.Identity)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Options:
    """What is trained, where it starts and what is exchanged; see `Learning`."""

    init: Init = "given"
    same_start: bool = True
    buffers: Literal["pull"] | None = None
    shared: Patterns = None
    personal: Patterns = None
    personal_step_size: float = 0.01

    def check(self) -> None:
        if self.buffers not in (None, "pull"):
            raise InvalidInput(f"buffers must be 'pull' or None, got {self.buffers!r}; use buffers='pull'.")
        if self.shared is not None and self.personal is not None:
            raise InvalidInput("shared and personal must not both be given; what is not one is the other.")
        step = self.personal_step_size
        if isinstance(step, bool) or not isinstance(step, int | float) or not 0 <= step < float("inf"):
            raise InvalidInput(
                f"personal_step_size must be a number of at least 0, got {step!r}; "
                "use personal_step_size=0.01."
            )


@dataclass(frozen=True, eq=False)
class Columns:
    """What lies where in a flat model, from left to right. Frozen parameters are constants of the module."""

    shared: Layout  # the parameters that methods work on
    running: Layout  # statistics that are exchanged with them
    personal: Layout  # parameters that stay with their client, which trains them itself
    local: Layout  # statistics that stay

    @staticmethod
    def of(module: nn.Module, statistics: Layout, options: Options) -> Columns:
        """Divide what training changes in a module by the patterns of the options."""
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        buffers = dict(module.named_buffers())
        changed = {name: buffers[name] for name in statistics.names}
        names = [*trained, *changed]
        stays = _personal(names, options)
        _check_tied(module, stays, options)
        parts = [
            Layout.of({name: t for name, t in tensors.items() if (name in stays) == here})
            for here in (False, True)
            for tensors in (trained, changed)
        ]
        columns = Columns(*parts)
        if not columns.shared.size:
            raise InvalidInput(
                f"{'personal' if options.shared is None else 'shared'} must leave some parameters to "
                f"exchange, got {options.shared or options.personal!r}; of {', '.join(trained)} none is."
            )
        if columns.running.names and options.buffers != "pull":
            raise InvalidInput(
                f"model must not change buffers while it trains, but {columns.running.names[0]!r} changes; "
                "replace BatchNorm by torch.nn.GroupNorm, or use "
                'buffers="pull" to exchange them with the models.'
            )
        return columns

    @property
    def behind(self) -> Layout:
        """All columns behind the parameters."""
        return self.running + self.personal + self.local

    @property
    def private(self) -> int:
        return self.personal.size + self.local.size

    @property
    def whole(self) -> Layout:
        return self.shared + self.behind


def _personal(names: list[str], options: Options) -> set[str]:
    """The names of what stays with its client."""
    key = "personal" if options.shared is None else "shared"
    given = options.personal if options.shared is None else options.shared
    patterns = [given] if isinstance(given, str) else list(given or ())
    for pattern in patterns:
        if not isinstance(pattern, str) or not any(fnmatchcase(name, pattern) for name in names):
            raise InvalidInput(
                f"{key} has {pattern!r}, which matches nothing that is trained; "
                f"choose from {', '.join(names)}."
            )
    found = {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}
    return found if options.shared is None else set(names) - found


def _check_tied(module: nn.Module, personal: set[str], options: Options) -> None:
    """Refuse patterns that match one name of a tied parameter, which its first name leaves elsewhere."""
    key = "personal" if options.shared is None else "shared"
    given = options.personal if options.shared is None else options.shared
    patterns = [given] if isinstance(given, str) else list(given or ())
    first_names = {id(parameter): name for name, parameter in module.named_parameters()}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first = first_names[id(parameter)]
        if name == first or not parameter.requires_grad:
            continue
        matched = any(fnmatchcase(name, pattern) for pattern in patterns)
        first_matched = (first in personal) == (key == "personal")
        if matched and not first_matched:
            raise InvalidInput(
                f"{key} has a pattern for {name!r}, which is tied to {first!r} and goes where that one goes; "
                f"add {first!r}, or name only what is not tied."
            )


@dataclass(frozen=True, eq=False)
class Trainable:
    """The model of a learning problem; nothing here depends on who holds which samples."""

    model: nn.Module  # as it was given; never changed
    objective: Objective
    engine: Engine
    plain: LoopEngine  # for what other engines cannot do
    columns: Columns
    cost: int  # multiplications for one sample
    accuracy: Accuracy | None
    width: int  # numbers in the outputs of one sample
    options: Options
    few: tuple[Tree, Tree] | None  # samples to try engines on; None where they are read one by one
    no_full_gradient: str | None = None  # why there is no gradient in evaluation mode, which `full` needs
    moved: dict[tuple[str, torch.dtype], Trainable] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(model: nn.Module, objective: Objective, data: ClientData, options: Options) -> Trainable:
        """Try the model on a few samples, refuse what cannot be trained, and choose its engine."""
        options.check()
        module = copied(model)
        check_init(model, options.init)
        trial = Trial.of(module, objective, data)
        trial.train(data)
        statistics, random = side_effects(module, trial.inputs, trial.forward)
        columns = Columns.of(module, statistics, options)
        trial.refuse_carried_state()
        objective = trial.objective
        rest = columns.behind, random, columns.personal, options.personal_step_size
        plain = LoopEngine(in_own_precision(model, module), columns.shared, objective, *rest)
        few = None if isinstance(data.samples, Loose) else (trial.inputs, trial.targets)
        engine = plain if few is None else choose(plain, *few)
        cost = multiplications(module, trial.inputs, trial.forward)
        facts = cost, trial.accuracy, trial.width
        reason = _why_no_full_gradient(plain, columns, trial)
        if reason is not None:
            warnings.warn(
                "gradient_norm and train_loss are left out, because the model has no gradient in evaluation "
                f"mode: {reason}",
                stacklevel=4,
            )
        return Trainable(model, objective, engine, plain, columns, *facts, options, few, reason)

    @property
    def layout(self) -> Layout:
        """The parameters that methods work on."""
        return self.columns.shared

    @property
    def loss(self) -> Loss:
        return self.objective.loss

    def start(self, seed: int, clients: int) -> Tensor:
        """(clients, parameters) initial models."""
        return self._starts(seed, clients, self.columns.shared)

    def statistics(self, seed: int, clients: int) -> Tensor:
        """(clients, columns) what clients keep besides, as they start with it."""
        behind = self.columns.behind
        return self._starts(seed, clients, behind) if behind.names else torch.empty(clients, 0)

    def _starts(self, seed: int, clients: int, layout: Layout) -> Tensor:
        starts = 1 if self.options.same_start or self.options.init == "given" else clients
        rows = []
        for client in range(starts):
            module = initial(self.model, self.options.init, seed, client)
            named = dict(module.named_parameters()) | dict(module.named_buffers())
            rows.append(flatten(named[name] for name in layout.names))
        return torch.stack(rows).expand(clients, -1)

    def filled(self, x: Tensor) -> nn.Module:
        """A copy of the given module with the model x (columns,) in it, in evaluation mode on the CPU."""
        self.check_columns(x[None])
        module = copy.deepcopy(self.model).cpu().eval()
        slots = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in self.columns.whole.unflatten(x).items():
                slots[name].copy_(value)
        return module

    def constants(self) -> list[Tensor]:
        """What no column holds: frozen parameters, and buffers that training does not change."""
        named = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        held = set(self.columns.whole.names)
        return [tensor.detach() for name, tensor in named.items() if name not in held]

    def to(self, device: torch.device, dtype: torch.dtype) -> Trainable:
        """With the engine for this device, and the numbers of the loss on it; modules follow models."""
        if dtype not in (torch.float32, torch.float64):
            raise InvalidInput(
                f"dtype must be torch.float32 or torch.float64, got {dtype}; use torch.float32."
            )
        has_numbers = isinstance(self.loss, nn.Module) and bool(list(self.loss.buffers()))
        if device.type == "cpu" and not has_numbers:
            return self
        key = str(device), dtype
        if key not in self.moved:
            loss = copy.deepcopy(self.loss).to(device, dtype) if has_numbers else self.loss  # type: ignore[attr-defined]
            plain = replace(self.plain, objective=replace(self.objective, loss=loss), copies={})
            engine = plain if self.few is None else choose(self.plain, *self.few, device=device.type)
            if isinstance(engine, LoopEngine):
                engine = plain
            elif isinstance(engine, VmapEngine):
                engine = replace(engine, objective=plain.objective, copies={})
            self.moved[key] = replace(self, objective=plain.objective, plain=plain, engine=engine, moved={})
        return self.moved[key]

    def autocasted(self) -> Trainable:
        """With forward passes of gradients in bfloat16; models, losses and evaluations stay as they are."""
        objective = replace(self.objective, autocast=True)
        plain = replace(self.plain, objective=objective, copies={})
        engine = plain if self.few is None else choose(plain, *self.few)
        return replace(self, objective=objective, plain=plain, engine=engine, moved={})

    def check_columns(self, x: Tensor) -> None:
        """Say so if models (n, columns) are not parameters and what stands behind them."""
        columns = self.columns
        wanted = columns.shared.size + columns.behind.size
        if x.shape[1] != wanted:
            some = f", {columns.running.size} of them running statistics" if columns.running.names else ""
            some += f", {columns.private} of them private" if columns.private else ""
            raise InvalidInput(f"models must have {wanted} columns, got {x.shape[1]}{some}.")


# --- engines --------------------------------------------------------------------------------------------
def choose(plain: LoopEngine, inputs: Tree, targets: Tree, device: str = "cpu") -> Engine:
    """The engine for this module and kind of device.

    A single linear layer has a closed form. Other modules run as they are on a CPU, a client at a time;
    an accelerator takes all clients at once. The closed form and vmap are used only if they agree, in single
    precision, with the module itself on a few samples.
    """
    if plain.objective.autocast:
        exact = replace(plain, objective=replace(plain.objective, autocast=False), copies={})
        engine = choose(exact, inputs, targets, device)
        if isinstance(engine, LoopEngine) or device == "cpu":
            return plain
        return VmapEngine(plain.module, plain.layout, plain.objective)
    module, loss = plain.module, plain.objective
    parts = [part for part in module.modules() if type(part) not in _NO_LAYERS]
    tensors = isinstance(inputs, Tensor) and isinstance(targets, Tensor)
    if not tensors or loss.whole or loss.ignored is not None or plain.random or plain.statistics.names:
        return plain
    if any(map(_altered, module.modules())):
        return plain
    stacked = stacked_loss(loss.loss)
    fast: list[Engine] = [] if device == "cpu" else [VmapEngine(module, plain.layout, loss)]
    whole = plain.layout.size == sum(p.numel() for p in module.parameters())
    if len(parts) == 1 and type(parts[0]) is nn.Linear and whole and stacked and targets.ndim == 1:  # type: ignore[attr-defined]
        layer = parts[0]
        fast.insert(0, LinearEngine(layer.in_features, layer.out_features, layer.bias is not None, stacked))
    return next((engine for engine in fast if _agree(engine, plain, inputs, targets)), plain)  # type: ignore[arg-type]


def _why_no_full_gradient(plain: LoopEngine, columns: Columns, trial: Trial) -> str | None:
    """The error of a gradient in evaluation mode; None where there is none."""
    named = dict(trial.module.named_parameters()) | dict(trial.module.named_buffers())
    model = flatten(named[name] for name in columns.whole.names)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain.with_losses(model[None], [clone(trial.inputs)], [clone(trial.targets)], None)
    except Exception as error:
        return first_line(error)
    finally:
        plain.copies.clear()
    return None


def _altered(part: nn.Module) -> bool:
    """Its class does not tell what it does: it has hooks, parametrizations or a forward of its own."""
    return (
        any(getattr(part, hooks, None) for hooks in _HOOKS)
        or "forward" in vars(part)
        or (nn.utils.parametrize.is_parametrized(part))
    )


def _agree(fast: Engine, plain: LoopEngine, inputs: Tensor, targets: Tensor) -> bool:
    """Whether gradients and outputs are those of the plain loop, at the given weights and at random ones."""
    named = dict(plain.module.named_parameters())
    given = flatten(named[name] for name in plain.layout.names).float()
    draws = rng.torch_generator(0, "agree")
    models = torch.stack([given, *(size * torch.randn(len(given), generator=draws) for size in (0.3, 3.0))])
    batches, answers = (
        torch.stack([part.roll(n, 0) for n in range(len(models))]) for part in (inputs, targets)
    )
    with warnings.catch_warnings(), seeded(0):
        warnings.simplefilter("ignore")
        # vmap warns where it falls back to a slow loop of its own
        warnings.filterwarnings("error", message=".*performance drop.*")
        try:
            ours = fast.grads(models, batches.clone(), answers.clone(), [0] * len(models))
            seen = fast.outputs(models, inputs)
            theirs = plain.grads(models, batches.clone(), answers.clone(), [0] * len(models))
            outputs = torch.stack(plain.outputs(models, inputs))  # type: ignore[arg-type]
        except Exception:
            return False
        finally:
            plain.copies.clear()
    if not isinstance(seen, Tensor):
        return False
    return _close(ours, theirs) and _close(seen, outputs)


def _close(ours: Tensor, theirs: Tensor) -> bool:
    """Equal to rounding, which is relative to the largest number of a model."""
    if ours.shape != theirs.shape:
        return False
    ours = ours.detach()  # a forward pass may switch gradients on
    theirs = theirs.detach()
    size = theirs.abs().flatten(1).amax(1).clamp_min(1e-2).nan_to_num(posinf=1.0)
    return all(
        torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(scale), equal_nan=True)
        for one, other, scale in zip(ours, theirs, size, strict=True)
    )

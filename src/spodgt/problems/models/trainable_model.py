"""A module with its loss as a trainable model."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from spodgt._util.text import first_line
from spodgt.engine import current_engine
from spodgt.errors import InvalidInput
from spodgt.problems.data.client_data import ClientData
from spodgt.problems.data.pytree import Tree, clone
from spodgt.problems.data.samples import LazySamples
from spodgt.problems.gradients import Engine, Layout, flatten
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.losses import Loss, Objective
from spodgt.problems.metrics import Accuracy
from spodgt.problems.models.engine_selection import select_engine
from spodgt.problems.models.initialization import check_init, initial_module
from spodgt.problems.models.parameters import ModelColumns, ModelOptions
from spodgt.problems.models.probe import (
    ModelProbe,
    copy_in_float32,
    copy_in_own_precision,
    count_multiplications,
    find_side_effects,
)


@dataclass(frozen=True, eq=False)
class TrainableModel:
    """The model of a learning problem; it does not depend on the data of the clients.

    Args:
        module: as the user gave it; it is never changed.
        objective: the loss.
        engine: computes gradients and outputs.
        plain: the engine that runs the module as it is.
        columns: of a flat model.
        multiplications: of one sample in a forward pass.
        accuracy: how accuracy is computed; None if it is undefined.
        input_size: numbers in the input of one sample; 1 if samples are read one by one.
        output_size: numbers in the outputs of one sample.
        options: of the user.
        probe_batch: a few samples to compare engines on; None if samples are read one by one.
        no_full_gradient: why gradients in evaluation mode cannot be computed; None if they can.
    """

    module: nn.Module
    objective: Objective
    engine: Engine
    plain: LoopEngine
    columns: ModelColumns
    multiplications: int
    accuracy: Accuracy | None
    input_size: int
    output_size: int
    options: ModelOptions
    probe_batch: tuple[Tree, Tree] | None
    no_full_gradient: str | None = None
    _device_copies: dict[tuple[str, torch.dtype], TrainableModel] = field(
        default_factory=dict, repr=False
    )

    @staticmethod
    def of(
        model: nn.Module, objective: Objective, data: ClientData, options: ModelOptions
    ) -> TrainableModel:
        """Probe a module on a few samples and select its engine.

        Raises:
            InvalidInput: if the module cannot be trained with this loss and these data.
            InvalidData: if targets do not fit the outputs.
        """
        options.check()
        module = copy_in_float32(model)
        check_init(model, options.init)
        probe = ModelProbe.of(module, objective, data)
        probe.check_training(data)
        side_effects = find_side_effects(module, probe.inputs, probe.forward)
        columns = ModelColumns.of(module, side_effects.statistics, options)
        probe.refuse_carried_state()
        plain = LoopEngine(
            module=copy_in_own_precision(model, module),
            layout=columns.shared,
            objective=probe.objective,
            extra=columns.extra,
            draws_random_numbers=side_effects.draws_random_numbers,
            personal=columns.personal,
            personal_step_size=options.personal_step_size,
        )
        probe_batch = None
        engine: Engine = plain
        if not isinstance(data.samples, LazySamples):
            probe_batch = (probe.inputs, probe.targets)
            engine = select_engine(plain, probe.inputs, probe.targets)
        no_full_gradient = _why_no_full_gradient(plain, columns, probe)
        if no_full_gradient is not None:
            warnings.warn(
                "gradient_norm and train_loss are left out, because the model has no gradient in "
                f"evaluation mode: {no_full_gradient}",
                stacklevel=4,
            )
        return TrainableModel(
            module=model,
            objective=probe.objective,
            engine=engine,
            plain=plain,
            columns=columns,
            multiplications=count_multiplications(module, probe.inputs, probe.forward),
            accuracy=probe.accuracy,
            input_size=data.samples.numbers_per_input,
            output_size=probe.output_size,
            options=options,
            probe_batch=probe_batch,
            no_full_gradient=no_full_gradient,
        )

    @property
    def layout(self) -> Layout:
        """The parameters that methods train."""
        return self.columns.shared

    @property
    def loss(self) -> Loss:
        """The loss function."""
        return self.objective.loss

    @property
    def active_engine(self) -> Engine:
        """The engine in use: `plain` inside `use_engine("plain")`."""
        if current_engine() == "plain":
            return self.plain
        return self.engine

    # --- initial values --------------------------------------------------------------------------
    def initial_parameters(self, seed: int, clients: int) -> Tensor:
        """(clients, parameters) initial models."""
        return _initial_columns(self, seed, clients, self.columns.shared)

    def initial_extra_columns(self, seed: int, clients: int) -> Tensor:
        """(clients, columns) initial running statistics and personal parameters."""
        if not self.columns.extra.names:
            return torch.empty(clients, 0)
        return _initial_columns(self, seed, clients, self.columns.extra)

    # --- modules ---------------------------------------------------------------------------------
    def to_module(self, x: Tensor) -> nn.Module:
        """A copy of the module with the model x (columns,), in evaluation mode on the CPU."""
        self.check_columns(x[None])
        module = copy.deepcopy(self.module).cpu().eval()
        tensors = _named_tensors(module)
        with torch.no_grad():
            for name, value in self.columns.all.unflatten(x).items():
                tensors[name].copy_(value)
        return module

    def constants(self) -> list[Tensor]:
        """Frozen parameters, and buffers that training does not change."""
        column_names = set(self.columns.all.names)
        constants = []
        for name, tensor in _named_tensors(self.module).items():
            if name not in column_names:
                constants.append(tensor.detach())
        return constants

    def check_columns(self, x: Tensor) -> None:
        """Raise `InvalidInput` unless models x have shape (n, columns)."""
        columns = self.columns
        expected = columns.all.size
        if x.shape[1] == expected:
            return
        details = ""
        if columns.running.names:
            details += f", {columns.running.size} of them running statistics"
        if columns.private:
            details += f", {columns.private} of them private"
        raise InvalidInput(f"models must have {expected} columns, got {x.shape[1]}{details}.")

    # --- other versions --------------------------------------------------------------------------
    def to(self, device: torch.device, dtype: torch.dtype) -> TrainableModel:
        """The model with the engine for a device, and the buffers of the loss on that device.

        Engines move the module to the device of the models that they are given.
        """
        if dtype not in (torch.float32, torch.float64):
            raise InvalidInput(
                f"dtype must be torch.float32 or torch.float64, got {dtype}; use torch.float32."
            )
        loss = self.loss
        has_buffers = isinstance(loss, nn.Module) and bool(list(loss.buffers()))
        if device.type == "cpu" and not has_buffers:
            return self
        key = (str(device), dtype)
        if key not in self._device_copies:
            objective = self.objective
            if has_buffers:
                loss_on_device = copy.deepcopy(loss).to(device, dtype)  # type: ignore[attr-defined]
                objective = replace(objective, loss=loss_on_device)
            self._device_copies[key] = self._with_objective(objective, device.type)
        return self._device_copies[key]

    def _with_objective(self, objective: Objective, device: str) -> TrainableModel:
        plain = self.plain.with_objective(objective)
        engine: Engine = plain
        if self.probe_batch is not None:
            selected = select_engine(self.plain, *self.probe_batch, device=device)
            if selected is not self.plain:
                engine = selected.with_objective(objective)
        return replace(self, objective=objective, plain=plain, engine=engine, _device_copies={})


def _initial_columns(model: TrainableModel, seed: int, clients: int, layout: Layout) -> Tensor:
    """(clients, columns) initial values of some columns."""
    options = model.options
    distinct = clients
    if options.same_start or options.init == "given":
        distinct = 1
    rows = []
    for client in range(distinct):
        module = initial_module(model.module, options.init, seed, client)
        tensors = _named_tensors(module)
        rows.append(flatten(tensors[name] for name in layout.names))
    return torch.stack(rows).expand(clients, -1)


def _named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _why_no_full_gradient(
    plain: LoopEngine, columns: ModelColumns, probe: ModelProbe
) -> str | None:
    """The error of a gradient in evaluation mode; None if there is none."""
    tensors = _named_tensors(probe.module)
    model = flatten(tensors[name] for name in columns.all.names)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain.losses_and_gradients(
                model[None], [clone(probe.inputs)], [clone(probe.targets)], None
            )
    except Exception as error:
        return first_line(error)
    finally:
        plain.copies.clear()
    return None

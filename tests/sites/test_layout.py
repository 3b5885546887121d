"""Rows of models: which tensors travel, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from spodgt.errors import InvalidInput
from spodgt.peer.membership.run_folders import script_parameters
from spodgt.sites.layout import RowLayout, model_row
from tests.sites.fleet_of_threads import make_run


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_row_holds_parameters_then_running_statistics() -> None:
    model = network()
    row = model_row(model)
    assert row.layout.tracked == 3 * 4 + 4 + 4 + 4 + 4 * 2 + 2
    assert row.layout.columns == row.layout.tracked + 8
    assert [spec.name for spec in row.layout.buffers] == ["1.running_mean", "1.running_var"]


def test_row_is_written_and_read_without_loss() -> None:
    model = nn.Sequential(nn.Linear(3, 2).double(), nn.Linear(2, 2))
    row = model_row(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    values = row.read()
    for parameter in model.parameters():
        parameter.data.zero_()
    row.write(values)
    for parameter, expected in zip(model.parameters(), before, strict=True):
        assert torch.allclose(parameter, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exported_names_are_those_of_the_model(tmp_path: Path, dtype: torch.dtype) -> None:
    model = network().to(dtype)
    row = model_row(model)
    manifest = make_run(tmp_path / "run", row.layout, 2)
    exported = script_parameters(manifest, row.read())
    before = {name: each.clone() for name, each in model.state_dict().items()}
    missing, unexpected = model.load_state_dict(exported, strict=False)
    assert set(missing) <= {"1.num_batches_tracked"}  # a counter; it is not exchanged
    assert not unexpected
    for name, each in model.state_dict().items():
        assert torch.allclose(each, before[name], rtol=1e-14, atol=0)


def test_mixing_moves_parameters_and_statistics_towards_the_row() -> None:
    model = network()
    row = model_row(model)
    target = torch.ones(row.layout.columns)
    for parameter in model.parameters():
        parameter.data.zero_()
    row.mix(target, 0.25)
    assert all(torch.allclose(p, torch.full_like(p, 0.25)) for p in model.parameters())
    statistics = model[1]
    assert isinstance(statistics, nn.BatchNorm1d)
    assert torch.allclose(statistics.running_mean, torch.full((4,), 0.25))  # type: ignore[arg-type]
    assert torch.allclose(statistics.running_var, torch.ones(4))  # type: ignore[arg-type]
    assert int(statistics.num_batches_tracked) == 0  # type: ignore[arg-type]


def test_statistics_are_those_of_the_model_after_it_was_moved() -> None:
    """`module.to` keeps parameters but replaces buffers by new tensors."""
    model = network()
    row = model_row(model)
    model.double()
    model.float()
    statistics = model[1]
    assert isinstance(statistics, nn.BatchNorm1d)
    assert statistics.running_mean is not None
    statistics.running_mean.fill_(3.0)
    assert torch.equal(row.read()[row.layout.tracked :][:4], torch.full((4,), 3.0))
    row.mix(torch.ones(row.layout.columns), 0.5)
    assert torch.allclose(statistics.running_mean, torch.full((4,), 2.0))


def test_mixing_with_an_interval_moves_to_the_nearest_value_in_it() -> None:
    """A quantized model that may equal the own one does not move it; local progress is kept."""
    model = nn.Linear(1, 3, bias=False)
    row = model_row(model)
    model.weight.data[:, 0] = torch.tensor([0.0, 1.0, 2.0])
    received = torch.tensor([0.05, 2.0, 0.0])
    row.mix(received, 0.5, torch.full((3,), 0.1))
    assert torch.allclose(model.weight[:, 0], torch.tensor([0.0, 1.45, 1.05]))


def test_names_without_prefixes_stay_distinct() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1)
            self.weight = nn.Parameter(torch.zeros(2))

    layout = model_row(Model()).layout
    assert sorted(spec.name for spec in layout.parameters) == [
        "module.bias",
        "module.weight",
        "weight",
    ]


def test_complex_parameters_are_refused_and_frozen_ones_are_not() -> None:
    model = nn.Module()
    model.z = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(InvalidInput, match=r"z is complex64; train torch\.view_as_real"):
        model_row(model)
    model.z.requires_grad_(False)
    model.x = nn.Parameter(torch.zeros(2))
    assert model_row(model).layout.frozen


def test_layout_survives_the_manifest_and_names_the_first_difference() -> None:
    layout = model_row(network()).layout
    again = RowLayout.from_table(layout.to_table())
    assert again == layout
    assert again.hash == layout.hash
    other = model_row(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))).layout
    assert layout.difference(layout) == ""
    text = other.difference(layout)
    assert text == "0.weight float32[5, 3] is where 0.weight float32[4, 3] was expected"
    assert "float64" in model_row(network().double()).layout.difference(layout)
    with pytest.raises(InvalidInput, match="another form"):
        RowLayout.from_table({"parameters": [["a"]], "buffers": []})


def test_frozen_part_must_be_the_same_everywhere() -> None:
    torch.manual_seed(0)
    first = network()
    first[0].requires_grad_(False)
    same = network()
    same.load_state_dict(first.state_dict())
    same[0].requires_grad_(False)
    other = network()
    other[0].requires_grad_(False)
    layout = model_row(first).layout
    assert layout.difference(model_row(same).layout) == ""
    assert "without gradient" in layout.difference(model_row(other).layout)


def test_wrappers_do_not_change_the_names() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model = network()
    assert model_row(Wrapper(model)).layout == model_row(model).layout
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    assert model_row(compiled).layout == model_row(model).layout


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_parameters_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(InvalidInput, match="keep trained parameters in float32"):
        model_row(nn.Linear(2, 2).to(dtype))


def test_model_without_trained_parameters_is_refused() -> None:
    with pytest.raises(InvalidInput, match="requires_grad=True"):
        model_row(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(InvalidInput, match="not initialized"):
        model_row(nn.LazyLinear(2))

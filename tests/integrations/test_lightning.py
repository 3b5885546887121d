"""SpodgtCallback in a real Lightning Trainer: closures, clipping, scores, refusals."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from spodgt.errors import InvalidInput
from tests.integrations.one_site import D, LocalSession
from tests.sites.fleet_of_threads import make_run

pytestmark = pytest.mark.filterwarnings("default")  # of other libraries


@pytest.fixture(scope="module")
def modules() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("lightning")
        from tests.integrations import lightning_modules
    return lightning_modules


def test_automatic_optimization_records_the_raw_gradient(modules: Any) -> None:
    session = LocalSession()
    model = modules.Slope()
    modules.fit(session, model, [0.5])
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 0.5))
    assert torch.allclose(model.w, torch.full((3,), 1 - 0.5 - D))
    assert session.correction.steps == 1
    assert session.ended is True
    assert session.scores[0]["loss"] == pytest.approx(1.5)


def test_clipping_of_lightning_follows_the_correction(modules: Any) -> None:
    session = LocalSession()
    model = modules.Slope()
    modules.fit(session, model, [0.5], gradient_clip_val=0.1)
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 0.5))
    assert float((model.w.detach() - 1).norm()) == pytest.approx(0.1, rel=1e-4)


def test_clipping_follows_the_correction_with_a_fused_optimizer(modules: Any) -> None:
    session = LocalSession()
    model = modules.FusedSlope()
    modules.fit(session, model, [0.5], gradient_clip_val=0.1)
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 0.5))
    assert float((model.w.detach() - 1).norm()) == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("kind", ["Slope", "FusedSlope"])
def test_scaled_gradients_are_recorded_unscaled_and_infinite_ones_are_skipped(
    modules: Any, kind: str
) -> None:
    session = LocalSession()
    model = getattr(modules, kind)()
    model.w.data *= 1e30  # the first losses overflow when they are scaled
    modules.fit(session, model, [0.5] * 15, plugins=modules.float16(init_scale=2.0**30))
    steps = session.correction.steps
    assert 0 < steps <= 15
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 0.5 * steps))


def test_gradient_accumulation_is_one_step(modules: Any) -> None:
    session = LocalSession()
    modules.fit(session, modules.Slope(), [1.0, 2.0, 3.0, 4.0], accumulate_grad_batches=4)
    assert session.correction.steps == 1
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 2.5))


def test_manual_optimization_is_corrected_once_in_a_step(modules: Any) -> None:
    session = LocalSession(max_norm=0.1)
    model = modules.Manual()
    modules.fit(session, model, [0.5])
    assert session.correction.steps == 1
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 0.5))
    assert float((model.w.detach() - 1).norm()) == pytest.approx(0.1, rel=1e-4)


def test_mixed_precision_leaves_gradients_and_parameters_in_float32(modules: Any) -> None:
    session = LocalSession()
    model = modules.Slope()
    modules.fit(session, model, [0.5], precision="bf16-mixed")
    assert model.w.dtype == torch.float32
    assert torch.allclose(session.correction.gradient_sum, torch.full((3,), 0.5))
    assert torch.allclose(model.w, torch.full((3,), 1 - 0.5 - D))


def test_error_of_the_module_ends_the_site(modules: Any) -> None:
    session = LocalSession()
    with pytest.raises(ValueError, match="bad slope"):
        modules.fit(session, modules.Slope(), [float("inf")])
    assert isinstance(session.ended, ValueError)


@pytest.mark.network
def test_start_after_a_crash_makes_the_rest_of_the_schedule(modules: Any, tmp_path: Path) -> None:
    """6 of 7 steps are committed, the schedule after 4; the Trainer begins to count at 0."""
    make_run(tmp_path / "run", modules.Slope(), 2)
    first = modules.train_joined(tmp_path / "run" / "p0", crash_after=7)
    rest = modules.train_joined(tmp_path / "run" / "p0")
    expected = [0.5 * (1 + math.cos(math.pi * step / 12)) for step in range(12)]
    assert first[:6] + rest == pytest.approx(expected)


def test_several_optimizers_are_refused(modules: Any) -> None:
    with pytest.raises(InvalidInput, match="has 2 optimizers, a site can correct one"):
        modules.fit(_Unjoined(), modules.TwoOptimizers(), [0.5])


class _Unjoined(LocalSession):
    def end(self, error: BaseException | None = None) -> None:
        """Nothing was joined."""

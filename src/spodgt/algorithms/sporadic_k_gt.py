"""Sporadic K-GT [zehtabi2026sporadic]: Spod-GT's step over all links in every round, clients are sporadic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from spodgt.algorithms.base import Traits
from spodgt.algorithms.spod_gt import SpodGT


@dataclass(frozen=True)
class SporadicKGT(SpodGT):
    name: ClassVar[str] = "sporadic-k-gt"
    traits: ClassVar[Traits] = replace(SpodGT.traits, sporadic_links="waits")

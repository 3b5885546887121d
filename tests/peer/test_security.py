"""Every promise of SECURITY.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
SECURITY = TESTS.parent.parent / "SECURITY.md"


def test_promises_name_tests_that_exist() -> None:
    source = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)\(", source, re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", SECURITY.read_text()))
    assert len(named) > 20
    assert not named - defined

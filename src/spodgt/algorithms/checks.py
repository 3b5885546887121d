from typing import Any


def check(algorithm: Any, network: Any, availability: Any) -> None: ...

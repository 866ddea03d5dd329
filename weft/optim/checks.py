"""Checks of hyper-parameters that optimizers share."""

from __future__ import annotations

from weft.base.errors import RangeError, problem


def check_numbers(who: str, **numbers: float) -> None:
    """Refuse hyper-parameters below zero."""
    for name, value in numbers.items():
        if not value >= 0.0:
            raise problem(RangeError, who, f"{name} {value}", "a number that is not negative", f"choose {name} >= 0")


def check_betas(who: str, betas: tuple[float, float], name: str = "betas", example: str = "(0.9, 0.999)") -> None:
    """Refuse rates of averages that are not below one."""
    if not (len(betas) == 2 and all(0.0 <= beta < 1.0 for beta in betas)):
        raise problem(RangeError, who, f"{name} {tuple(betas)}", "two numbers in [0, 1)", f"try {example}")

"""How many references there are to objects: the one module that counts them.

Counts only choose what is worth storing (`weft.core.realize.find_retained`); no value depends on them. What counting
itself adds is measured when this module is imported, by the same call: `map` over a list, in C, where no bytecode of
the running interpreter (3.14 borrows references that 3.11 counts) has a part in it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def count_references(things: Sequence[Any]) -> list[int]:
    """How many references there are to each of these things, beside those of `things` itself.

    >>> thing = object()
    >>> others = [thing, (thing,)]
    >>> count_references([thing])  # of the name, of the list and of the tuple
    [3]
    """
    return [count - _BY_COUNTING for count in map(sys.getrefcount, things)]


(_BY_COUNTING,) = map(sys.getrefcount, [object()])

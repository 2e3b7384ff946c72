"""What the modules of a room declare: a new file in the room is found without being listed."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TypeVar

__all__ = ["declared"]

Part = TypeVar("Part")


def declared(room: str, name: str, kind: type[Part]) -> list[Part]:
    """What the modules directly in a room declare under a name.

    Args:
        room: The package, such as "jaxsmi.cli".
        name: The name of the module's variable, such as "COMMAND".
        kind: The type it must have.

    Returns:
        The values, in the alphabetical order of the modules.

    Raises:
        TypeError: A module declares something else under that name.
    """
    values = []
    for module in pkgutil.iter_modules(importlib.import_module(room).__path__):
        contents = vars(importlib.import_module(f"{room}.{module.name}"))
        if name not in contents:
            continue
        value = contents[name]
        if not isinstance(value, kind):
            raise TypeError(f"{room}.{module.name}.{name}: got {value!r}; allowed: {kind}.")
        values.append(value)
    return values

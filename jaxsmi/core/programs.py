"""Compiled programs: what the compiler is told, beside the function.

On the CPU programs are built with the older emitters of fused loops, and with LLVM's first level
of optimisation: that takes 45 % of the time for the state evolution of two layers, 55 % for the
spectral start of message passing. A program that is called while JAX traces another becomes a part
of it and takes that one's options. Other backends compile as JAX does by itself. Where calls are
kept on disk (calls.py) a program is looked for there first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import equinox as eqx
import jax

from jaxsmi.core import calls
from jaxsmi.core.arrays import concrete

__all__ = ["OPTIONS", "options", "program"]

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

OPTIONS: dict[str, dict[str, bool | int]] = {
    "cpu": {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
}


@functools.cache
def options() -> dict[str, bool | int] | None:
    """What the compiler of the default backend is told; None where it is left alone, or where its
    version does not know one of these options."""
    wanted = OPTIONS.get(jax.default_backend())
    try:
        jax.jit(lambda: 0, compiler_options=wanted).lower().compile()
    except (ValueError, jax.errors.JaxRuntimeError):
        return None
    return wanted


def program(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """`eqx.filter_jit`, compiled as the backend is best told to (module docstring)."""
    inner = eqx.filter_jit(function)

    @functools.cache
    def outer() -> Callable[Arguments, Answer]:  # asked at the first call: it starts the device
        told = options()
        if told is None:
            return inner
        # the types of equinox do not know the options that it passes on to JAX
        return eqx.filter_jit(function, compiler_options=told)  # pyright: ignore[reportCallIssue]

    find = calls.kept(function, options)

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        if not concrete((args, kwargs, jax.device_put(0))):
            return inner(*args, **kwargs)
        kept = find(args, kwargs)
        return outer()(*args, **kwargs) if kept is None else kept()

    return call

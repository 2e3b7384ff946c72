"""What a command is: its name, its flags, and what it does. No equation lives here."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxsmi.cli.report import Report

__all__ = ["Command"]


def _name(arguments: argparse.Namespace) -> str:
    """Files are called after the command."""
    return arguments.command


def _no_defaults(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """No defaults depend on the words."""
    del arguments
    return {}


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the command line.

    Args:
        name: The word after `jaxsmi`.
        summary: One sentence for the list of commands.
        add_flags: Adds its flags to a parser.
        execute: Does the work; writes and prints nothing.
        details: What its help says after the summary. Default "".
        takes_model: Whether the next word is a model, with its flags. Default True.
        operand: What the next word is called, where it is no model; "": there is none. Default "".
        defaults: Defaults that depend on the words given, by flag. Default: none.
        stem: How the names of its files begin. Default: with its own.
        resumes: Whether it goes on in a folder that holds results. Default False.
    """

    name: str
    summary: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.Namespace], Report]
    details: str = ""
    takes_model: bool = True
    operand: str = ""
    defaults: Callable[[argparse.Namespace], Mapping[str, Any]] = _no_defaults
    stem: Callable[[argparse.Namespace], str] = _name
    resumes: bool = False

    def defaults_of(self, model: str) -> Mapping[str, Any]:
        """Its defaults for a model."""
        if not self.takes_model:
            return {}
        return self.defaults(argparse.Namespace(command=self.name, model=model))

    @property
    def usage(self) -> str:
        """How it is called."""
        operand = "MODEL" if self.takes_model else self.operand
        return " ".join(word for word in ("jaxsmi", self.name, operand, "[flags]") if word)

    @property
    def description(self) -> str:
        """What its help says."""
        return f"{self.summary} {self.details}".strip()

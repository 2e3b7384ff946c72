"""The models of the command line: what they are called, how they are made, and their flags.

No equation lives here.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxsmi.core.checks import check
from jaxsmi.models import links
from jaxsmi.models.attention_indexed import AttentionIndexed
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.bilinear import Bilinear
from jaxsmi.models.deep_attention import DeepAttention
from jaxsmi.models.label_links import HALF_WIDTH

__all__ = ["FLAGS", "MODELS", "Flag", "ModelEntry", "build", "defaults_for"]


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of a model: its help, the kind of its values, whether there may be several, and
    whether it is a switch.

    `varies`: whether it can be one number, so that `threshold --vary` may go through its values.
    """

    help: str
    kind: type = float
    many: bool = False
    switch: bool = False
    varies: bool = True

    @property
    def whole(self) -> bool:
        """Whether its values are whole numbers."""
        return self.kind is int

    def add(self, parser: argparse._ArgumentGroup, name: str, help: str) -> None:
        """Add it to a parser; None where it is not given."""
        flag = f"--{name.replace('_', '-')}"
        if self.switch:
            parser.add_argument(flag, action="store_true", default=None, help=help)
        else:
            count = "+" if self.many else None
            metavar = name[0].upper()
            parser.add_argument(
                flag,
                type=self.kind,  # pyright: ignore[reportArgumentType]
                help=help,
                metavar=metavar,
                nargs=count,
            )


FLAGS: dict[str, Flag] = {
    "depth": Flag("attention layers", int),
    "tokens": Flag("tokens in a sequence", int),
    "skip": Flag(
        "strength of the skip connection: one number, or one for each hidden layer", many=True
    ),
    "aspect_ratio": Flag("length of the sequence over dimension of a token L/d"),
    "rank_ratio": Flag("width of the matrix r/d"),
    "symmetric": Flag("S = W W^T, a quadratic network", switch=True, varies=False),
    "output": Flag(
        "softmax, hardmax or linear; of bilinear: linear, sign or absolute", str, varies=False
    ),
    "layers": Flag("layers (two softmax layers of two tokens; else train only)", int),
    "ranks": Flag("rank of the layers: one number, or one for each", int, many=True, varies=False),
    "beta": Flag("inverse temperature of the softmax"),
    "factors": Flag("factors in the product", int),
    "noise": Flag("variance of the label noise"),
    "classes": Flag("classes of the labels", int),
    "size": Flag("size of the logarithm of the mean count"),
    "leak": Flag("slope for negative fields"),
    "width": Flag("where the door ends"),
}


class ModelEntry(NamedTuple):
    """How to make a model, its flags with their defaults, and defaults of commands that are others
    for it.
    """

    make: Callable[..., AbstractModel]
    flags: Mapping[str, Any]
    commands: Mapping[str, Mapping[str, Any]]


_ATTENTION_INDEXED = {
    "tokens": 2,
    "rank_ratio": 0.5,
    "output": "softmax",
    "beta": 1.0,
    "noise": 0.0,
    "layers": 1,
    "skip": 1.0,
}
_OF_MATRICES = {"weight_decay": 0.0, "batch_size": 0, "repeats": 1, "steps": 2000, "init": 1.0}

MODELS: dict[str, ModelEntry] = {
    "deep-attention": ModelEntry(
        DeepAttention, {"depth": 2, "tokens": 2, "skip": 1.0, "ranks": 1, "beta": 1.0}, {}
    ),
    "phase-retrieval": ModelEntry(links.phase_retrieval, {}, {}),
    "sign": ModelEntry(links.sign, {}, {"risk": {"student": "linear", "loss": "logistic"}}),
    "sign-product": ModelEntry(lambda factors: links.sign_product(factors), {"factors": 2}, {}),
    "product": ModelEntry(links.product, {}, {}),
    "square-plus-sign-parity": ModelEntry(links.square_plus_sign_parity, {}, {}),
    "linear": ModelEntry(links.linear, {"noise": 0.1}, {}),
    "logistic": ModelEntry(links.logistic, {"beta": 1.0}, {}),
    "softmax": ModelEntry(links.softmax, {"classes": 3}, {}),
    "poisson": ModelEntry(links.poisson, {"size": 1.0}, {}),
    "relu": ModelEntry(links.relu, {"noise": 0.0, "leak": 0.0}, {}),
    "hard-tanh": ModelEntry(links.hard_tanh, {"noise": 0.0}, {}),
    "absolute": ModelEntry(links.absolute, {"noise": 0.1}, {}),
    "door": ModelEntry(links.door, {"width": HALF_WIDTH}, {}),
    "attention-indexed": ModelEntry(
        lambda rank_ratio, **flags: AttentionIndexed(rank_ratio=rank_ratio, **flags),
        _ATTENTION_INDEXED,
        {
            "run": {"alpha": 0.15, "dimension": 100},
            "gamp": {"alpha": 0.15, "dimension": 100},
            "train": {
                "alpha": 0.1,
                "dimension": 50,
                "optimizer": "adam",
                "learning_rate": 0.05,
                "reduction": "mean",
                "runs": 16,
                **_OF_MATRICES,
            },
        },
    ),
    "bilinear": ModelEntry(
        Bilinear,
        {
            "aspect_ratio": 1.0,
            "rank_ratio": 0.2,
            "noise": 0.0,
            "symmetric": False,
            "output": "linear",
        },
        {
            "run": {"alpha": 0.3, "dimension": 60},
            "gamp": {"alpha": 0.3, "dimension": 60},
            "train": {  # 0.175 on the sum of squares is the 0.7 of the article on a quarter of it
                "alpha": 0.2,
                "dimension": 40,
                "optimizer": "sgd",
                "learning_rate": 0.175,
                "reduction": "sum",
                "runs": 8,
                **_OF_MATRICES,
            },
        },
    ),
}


def defaults_for(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Defaults of the command at hand that are others for the model at hand."""
    return MODELS[arguments.model].commands.get(arguments.command, {})


def build(model: str, **flags: Any) -> AbstractModel:
    """The model of that name; flags left out have their defaults.

    Raises:
        ValueError: For a name or a flag that is not known.
    """
    check(model in MODELS, "model", model, " | ".join(MODELS))
    entry = MODELS[model]
    unknown = sorted(set(flags) - set(entry.flags))
    allowed = f"flags of {model}: {', '.join(entry.flags) or 'none'}"
    check(not unknown, "parameters", ", ".join(unknown), allowed)
    return entry.make(**{**entry.flags, **flags})

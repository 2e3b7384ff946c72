"""The models of the command line: what they are called, how they are made, and their flags. No equation lives here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxsmi.core.checks import check
from jaxsmi.models import links
from jaxsmi.models.attention_indexed import AttentionIndexed
from jaxsmi.models.bilinear import Bilinear
from jaxsmi.models.deep_attention import DeepAttention

# Name on the command line: how to make it, and its flags with their defaults.
MODELS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "deep-attention": (
        DeepAttention,
        {"depth": 2, "tokens": 2, "skip": 1.0, "ranks": 1, "beta": 1.0},
    ),
    "phase-retrieval": (links.phase_retrieval, {}),
    "sign": (links.sign, {}),
    "sign-product": (lambda factors: links.sign_product(factors), {"factors": 2}),
    "product": (links.product, {}),
    "square-plus-sign-parity": (links.square_plus_sign_parity, {}),
    "linear": (links.linear, {"noise": 0.1}),
    "attention-indexed": (
        lambda rank_ratio, **flags: AttentionIndexed(rank_ratio=rank_ratio, **flags),
        {
            "tokens": 2,
            "rank_ratio": 0.5,
            "output": "softmax",
            "beta": 1.0,
            "noise": 0.0,
            "layers": 1,
            "skip": 1.0,
        },
    ),
    "bilinear": (
        Bilinear,
        {"aspect_ratio": 1.0, "rank_ratio": 0.2, "noise": 0.0, "symmetric": False},
    ),
}


# Defaults of a command that are others for a model.
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "attention-indexed": {
        "run": {"alpha": 0.15, "dimension": 100},
        "gamp": {"alpha": 0.15, "dimension": 100},
        "train": {
            "alpha": 0.1, "dimension": 50, "optimizer": "adam", "learning_rate": 0.05, "weight_decay": 0.0, "reduction": "mean",
            "batch_size": 0, "repeats": 1, "steps": 2000, "init": 1.0, "runs": 16,
        },
    },
    "bilinear": {
        "run": {"alpha": 0.3, "dimension": 60},
        "gamp": {"alpha": 0.3, "dimension": 60},
        "train": {  # 0.175 on the sum of squares is the 0.7 of the article on a quarter of it
            "alpha": 0.2, "dimension": 40, "optimizer": "sgd", "learning_rate": 0.175, "weight_decay": 0.0, "reduction": "sum",
            "batch_size": 0, "repeats": 1, "steps": 2000, "init": 1.0, "runs": 8,
        },
    },
}  # fmt: skip


FLAGS: dict[str, dict[str, Any]] = {
    "depth": {"type": int, "help": "attention layers"},
    "tokens": {"type": int, "help": "tokens in a sequence"},
    "skip": {
        "type": float,
        "nargs": "+",
        "help": "strength of the skip connection: one number, or one for each hidden layer",
    },
    "aspect_ratio": {"type": float, "help": "length of the sequence over dimension of a token L/d"},
    "rank_ratio": {"type": float, "help": "width of the matrix r/d"},
    "symmetric": {"action": "store_true", "help": "S = W W^T, a quadratic network"},
    "output": {"help": "softmax, hardmax or linear"},
    "layers": {"type": int, "help": "layers (more than one: train only)"},
    "ranks": {"type": int, "nargs": "+", "help": "rank of the layers: one number, or one for each"},
    "beta": {"type": float, "help": "inverse temperature of the softmax"},
    "factors": {"type": int, "help": "factors in the product"},
    "noise": {"type": float, "help": "variance of the label noise"},
}


def build(model: str, **flags: Any) -> Any:
    """The model of that name; flags left out have their defaults. Raises ValueError for a name or flag it does not know."""
    check(model in MODELS, "model", model, " | ".join(MODELS))
    make, own = MODELS[model]
    unknown = sorted(set(flags) - set(own))
    check(
        not unknown,
        "parameters",
        ", ".join(unknown),
        f"flags of {model}: {', '.join(own) or 'none'}",
    )
    return make(**(own | flags))

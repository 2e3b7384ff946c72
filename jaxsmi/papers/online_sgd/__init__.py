"""Figures of our own on online SGD: which layer is learned first, and what an untied query and key
cost."""

from jaxsmi.papers.common import Article
from jaxsmi.papers.online_sgd import order, query_key

__all__ = ["ARTICLE"]

ARTICLE = Article(
    "online-sgd",
    "Online SGD beside message passing and descent, and of an untied query and key",
    "",
    {"order": order.all_learners, "query-key": query_key.untied},
)

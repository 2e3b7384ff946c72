"""A task beside the solvable models: a classifier of questions, and when each layer settles."""

from jaxsmi.text.classifier import TextRun, classify, settled_at
from jaxsmi.text.network import Classifier
from jaxsmi.text.questions import Question, load, load_huggingface, synthetic_questions
from jaxsmi.text.vocabulary import Vocabulary

__all__ = [
    "Classifier",
    "Question",
    "TextRun",
    "Vocabulary",
    "classify",
    "load",
    "load_huggingface",
    "settled_at",
    "synthetic_questions",
]

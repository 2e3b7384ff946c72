"""Text classification by an attention network: questions and their vocabulary, the classifier and its training curves."""

from jaxsmi.text.classifier import Classifier, TextRun, classify, settled_at
from jaxsmi.text.questions import Question, Vocabulary, load, load_huggingface, synthetic_questions

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

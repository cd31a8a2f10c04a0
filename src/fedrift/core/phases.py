"""The one phase that is no method of an algorithm: clients evaluate a model."""

EVALUATE = "evaluate at clients"
"""Behind the path of whoever makes personal models; no method can have this name."""


def is_evaluation(phase: str) -> bool:
    return phase.rpartition(".")[2] == EVALUATE

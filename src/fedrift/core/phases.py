"""A phase of a round: the path of a client method, or the one that is none, in which clients
evaluate a model."""

EVALUATE = "evaluate at clients"
"""Behind the path of whoever makes personal models; no method can have this name."""


def is_evaluation(phase: str) -> bool:
    return phase.rpartition(".")[2] == EVALUATE


def owner_of(phase: str) -> str:
    """The path under which the state of the method's owner is kept."""
    return phase.rpartition(".")[0]

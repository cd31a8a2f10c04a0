"""Forgetting, recency and bias on curves made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedrift.analysis import classes
from fedrift.core import EvaluatedModel
from tests.support.curved import net

CURVES = np.array([[0.2, 0.9, 0.0], [0.8, 0.5, 0.0], [0.6, 0.7, 0.4]])


def test_forgetting_is_the_best_before_minus_the_last() -> None:
    assert classes.forgetting(CURVES) == pytest.approx([0.2, 0.2, 0.0])
    assert classes.forgetting(CURVES[:1]) == pytest.approx([0.0, 0.0, 0.0])


def test_drops_count_falls_only() -> None:
    assert classes.drops(CURVES) == pytest.approx((0.4 + 0.2) / 6)
    assert classes.drops(CURVES[:1]) == 0.0


def test_presence_is_the_mix_of_the_cohorts_samples() -> None:
    counts = np.array([[4.0, 0.0, 0.0], [0.0, 6.0, 2.0], [0.0, 0.0, 8.0]])
    found = classes.presence([(0,), (0, 1), (1, 2), ()], counts)
    wanted = [[1, 0, 0], [1 / 3, 1 / 2, 1 / 6], [0, 3 / 8, 5 / 8], [0, 0, 0]]
    assert found == pytest.approx(np.array(wanted))


def test_a_stray_sample_does_not_make_a_class_held() -> None:
    share = np.array([[0.97, 0.03, 0.0], [0.95, 0.05, 0.0]])
    assert classes.held_classes(share).tolist() == [[True, False, False], [True, True, False]]


def test_ages_count_rounds_since_a_class_was_held() -> None:
    present = np.array([[True, False], [False, False], [False, True], [True, False]])
    assert classes.ages(present).tolist() == [[0, -1], [1, -1], [2, 0], [0, 1]]


def test_recency_of_a_model_that_knows_only_what_it_saw_last() -> None:
    present = np.eye(4, dtype=bool)[[0, 1, 2, 3, 0, 1, 2, 3]]
    accuracy = present.astype(float)
    found = classes.recency(accuracy, present)
    assert found["lift"] == 1.0
    by_age = found["by_age"]
    assert isinstance(by_age, list)
    assert by_age[:4] == [1.0, 0.0, 0.0, 0.0]
    assert math.isnan(by_age[4])
    even = classes.recency(np.full((8, 4), 0.7), present)
    assert even["lift"] == pytest.approx(0.0)


def test_what_was_held_between_evaluations_counts() -> None:
    present = np.eye(4, dtype=bool)[[0, 1, 2, 3, 0, 1, 2, 3]]
    at = [1, 3, 5, 7]  # every second round was evaluated
    found = classes.recency(present.astype(float)[at], present, at)
    by_age = found["by_age"]
    assert isinstance(by_age, list) and by_age[:4] == [1.0, 0.0, 0.0, 0.0]
    assert found["lift"] == 1.0


def test_confusion_has_true_classes_as_rows() -> None:
    true, predicted = np.array([0, 0, 1, 2, -1]), np.array([0, 1, 1, 0, 2])
    assert classes.confusion(true, predicted, 3).tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 0]]


def test_predictions_obey_the_mask_and_logits_do_not() -> None:
    problem, data = net(600)
    shown = EvaluatedModel(problem.w0, allowed=torch.tensor([True, False, True, False]))
    logits, predicted = classes.outputs(problem.model, shown, data)
    assert logits.shape == (600, 4)
    assert set(predicted.tolist()) <= {0, 2}
    assert np.isfinite(logits).all()
    _, free = classes.outputs(problem.model, EvaluatedModel(problem.w0), data)
    assert set(free.tolist()) - {0, 2}


def test_norms_of_the_classifiers_rows() -> None:
    problem, _ = net()
    w = problem.w0.clone()
    problem.layout.named(w)["out.weight"].copy_(
        torch.eye(4, 16) * torch.tensor([[1], [2], [3], [4]])
    )
    assert classes.head_norms(problem, w) == pytest.approx([1.0, 2.0, 3.0, 4.0])


def test_correlation_of_what_does_not_vary_is_unknown() -> None:
    assert classes.correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1.0)
    assert math.isnan(classes.correlation([1, 1, 1], [2, 4, 6]))

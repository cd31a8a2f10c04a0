"""Lets torchvision be imported where its compiled operators do not fit the installed torch.

FedLab and fluke import it for data sets that are not used here; two operators must be declared
before that, nothing ever calls them.
"""

from __future__ import annotations

import torch

declared = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

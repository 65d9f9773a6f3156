"""Params that make no sense are refused with their name and a remedy."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_run import params

from k25stack.errors import UsageError
from k25stack.train.config import TrainConfig


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": None}, ["train: epochs is not given", "give epochs"]),
        ({"epochs": 0}, ["epochs is 0"]),
        ({"batch_token": 3}, ["unknown field batch_token", "batch_tokens"]),
        ({"optimizer": {"lr": 0.1, "kind": "sgd"}}, ["kind is 'sgd'", "muon, adamw"]),
        ({"optimizer": {"kind": "muon"}}, ["train.optimizer", "'lr'"]),
        ({"optimizer": {"lr": 0.0}}, ["lr is 0.0"]),
        ({"spec": {}}, ["train.spec"]),
        ({"dtype": "float16"}, ["dtype is 'float16'", "bfloat16, float32"]),
        ({"device": "cuda", "processes": 2}, ["2 processes on cuda"]),
        ({"eval": {"splitt": "x"}}, ["unknown field splitt", "train.eval"]),
    ],
)
def test_refused_with_its_name(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        TrainConfig.from_params(params(**changes))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_defaults() -> None:
    config = TrainConfig.from_params(params())
    assert (config.steps, config.loss_decay, config.k, config.processes) == (3, 0.8, 3, 1)
    assert config.optimizer.betas == (0.9, 0.95)

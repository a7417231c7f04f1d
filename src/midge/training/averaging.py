"""Averaged parameters: a mean over steps, which often recognizes better than any one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from midge.training.config import TrainingConfig


class Averaging:
    """The running mean of a module's parameters.

    "exponential" keeps a_n = d a_{n-1} + (1 - d) p_n with d = min(decay, (1 + n) / (10 + n)), so
    that the first steps are soon forgotten. "last" keeps the plain mean of the parameters after
    each of the last `averaging_steps` steps. There is one copy of the parameters, whatever the
    number of steps.

    Args:
        module: whose parameters.
        config: the kind of mean.
    """

    def __init__(self, module: nn.Module, config: TrainingConfig) -> None:
        self._module = module
        self._config = config
        self._mean: dict[str, Tensor] = {}
        self.num_averaged = 0
        """Number of steps in the mean."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The means by name of the parameter; empty as long as there is none."""
        return self._mean

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Takes in the parameters after a step."""
        config = self._config
        is_early = step <= config.num_steps - config.averaging_steps
        if config.averaging == "none" or (config.averaging == "last" and is_early):
            return
        self.num_averaged += 1
        count = self.num_averaged
        share = 1.0 / count
        if config.averaging == "exponential":
            share = 1.0 - min(config.averaging_decay, (1 + count) / (10 + count))
        for name, parameter in self._module.named_parameters():
            if count == 1:
                self._mean[name] = parameter.detach().clone()
            else:
                self._mean[name].lerp_(parameter, share)

    def load(self, tensors: Mapping[str, Tensor], num_averaged: int) -> None:
        """Goes on from a mean that was kept."""
        parameters = dict(self._module.named_parameters())
        self._mean = {name: x.to(parameters[name].device) for name, x in tensors.items()}
        self.num_averaged = num_averaged

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Has the module use the means inside, and its own parameters again afterwards."""
        own = {
            name: parameter.detach().clone()
            for name, parameter in self._module.named_parameters()
            if name in self._mean
        }
        self._assign(self._mean)
        try:
            yield
        finally:
            self._assign(own)

    @torch.no_grad()
    def _assign(self, tensors: Mapping[str, Tensor]) -> None:
        parameters = dict(self._module.named_parameters())
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)

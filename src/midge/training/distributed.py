"""Several processes that train one model, each on its share of every batch.

Under `torchrun` each process sums the gradients of its share; the sums are then added up over all
processes and divided by the label count of the whole batch. So the result is that of one process
with the whole batch, up to rounding; a process whose share is empty takes part with zeros; and
nobody waits for a batch that another does not have. This needs no wrapper around the model: the
gradients go as one buffer, once per step.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed
from torch import Tensor, nn


@dataclass(frozen=True)
class ProcessGroup:
    """This process among all that train together."""

    rank: int = 0
    """Its number; process 0 writes files and shows progress."""
    world_size: int = 1
    """How many there are."""
    device: torch.device = torch.device("cpu")
    """Where this process computes."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def sum(self, *numbers: float) -> list[float]:
        """The sums of numbers over all processes, in float64 and the same everywhere."""
        values = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        if self.world_size > 1:
            torch.distributed.all_reduce(values)
        return [float(value) for value in values]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces each gradient by its sum over all processes; one that is missing counts as 0."""
        parameters = list(parameters)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.world_size == 1 or not parameters:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        buffer = torch.cat([gradient.flatten() for gradient in gradients])
        torch.distributed.all_reduce(buffer)
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, summed in zip(gradients, buffer.split(sizes), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def share(self, module: nn.Module) -> None:
        """Gives every process the parameters and buffers of process 0."""
        if self.world_size > 1:
            for tensor in module.state_dict().values():
                torch.distributed.broadcast(tensor, src=0)

    def gather(self, names: Sequence[str]) -> list[str]:
        """The texts of all processes, one process after the other.

        Sent as JSON: torch's own way to gather objects would unpickle them.
        """
        if self.world_size == 1:
            return list(names)
        mine = torch.tensor(list(json.dumps(list(names)).encode()), dtype=torch.uint8)
        sizes = self._gathered(torch.tensor([len(mine)]))
        longest = int(max(sizes))
        padded = nn.functional.pad(mine, (0, longest - len(mine)))
        everyone: list[str] = []
        for size, text in zip(sizes, self._gathered(padded), strict=True):
            everyone += json.loads(bytes(text[: int(size)].tolist()).decode())
        return everyone

    def _gathered(self, mine: Tensor) -> list[Tensor]:
        mine = mine.to(self.device)
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        torch.distributed.all_gather(everyone, mine)
        return [tensor.cpu() for tensor in everyone]


@contextmanager
def process_group(device: str = "auto") -> Iterator[ProcessGroup]:
    """Joins the processes that `torchrun` started; alone without it.

    Args:
        device: "cpu", "cuda" or "auto".

    Raises:
        ValueError: if a graphics processor is asked for and there is none.
    """
    rank, world_size = (int(os.environ.get(n, x)) for n, x in (("RANK", 0), ("WORLD_SIZE", 1)))
    place = _device(device)
    if world_size == 1:
        yield ProcessGroup(device=place)
        return
    torch.distributed.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield ProcessGroup(rank, world_size, place)
    finally:
        torch.distributed.destroy_process_group()


def _device(name: str) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise ValueError("device should be 'cpu' or 'auto' on this machine, got 'cuda'")
    if name == "cpu" or not has_cuda:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))

"""Speed and losses between two lines of the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from midge.lattices import RecognitionLattice
from midge.training.diagnostics import diagnose
from midge.training.updates import StepResult


class Meter:
    """Adds up what steps did since the last line of the log, and the time they took.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.num_steps = 0
        """Steps since the beginning."""
        self.seconds = 0.0
        """What those took, evaluations and checkpoints apart."""
        self.loss_per_label = 0.0
        """Of the last step."""
        self._started = self._last = clock()
        self._waited = self._loss = 0.0
        self._num_labels = self._num_frames = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside as waiting for data."""
        before = self._clock()
        yield
        self._waited += self._clock() - before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out the time inside."""
        before = self._clock()
        yield
        self._started += self._clock() - before
        self._last += self._clock() - before

    def add(self, result: StepResult) -> None:
        """Takes in a step."""
        now = self._clock()
        self.num_steps += 1
        self.seconds += now - self._last
        self._last = now
        self._loss += 0.0 if result.is_skipped else result.loss
        self._num_labels += 0 if result.is_skipped else result.num_labels
        self._num_frames += result.num_frames
        self.loss_per_label = result.loss / max(result.num_labels, 1)

    def frames_per_second(self) -> float:
        """Encoder frames of all processes, since the last line."""
        return self._num_frames / max(self._clock() - self._started, 1e-9)

    def line(self, result: StepResult, lattice: RecognitionLattice) -> dict[str, Any]:
        """The fields of a line of the log, and a new beginning.

        Args:
            result: the last step.
            lattice: to look at an utterance of it.
        """
        spent = max(self._clock() - self._started, 1e-9)
        fields = {
            "loss": self._loss / max(self._num_labels, 1),
            "learning_rate": result.learning_rate,
            "gradient_norm": result.gradient_norm,
            "num_labels": self._num_labels,
            "num_frames": self._num_frames,
            "frames_per_second": self._num_frames / spent,
            "waiting_share": self._waited / spent,
        }
        if result.example is not None and not result.is_skipped:
            fields |= asdict(diagnose(lattice, *result.example))
        self._restart()
        return fields

    def _restart(self) -> None:
        self._started = self._last = self._clock()
        self._waited = self._loss = 0.0
        self._num_labels = self._num_frames = 0

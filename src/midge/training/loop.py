"""The training loop: steps, and between them the log, evaluations and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from typing import Any

from midge.data.loading import Batch, BatchLoader
from midge.data.plan import plan_batches, plan_forever
from midge.models.recognizer import Recognizer
from midge.progress import format_seconds
from midge.training.averaging import Averaging
from midge.training.config import Recipe
from midge.training.corpus import Corpus
from midge.training.distributed import ProcessGroup
from midge.training.evaluation import Evaluation, evaluate
from midge.training.interruption import Interruption
from midge.training.logs import Display, RunLog
from midge.training.reports import Meter
from midge.training.run import Keeper, RunFolder, RunState
from midge.training.updates import StepResult, Updates

_MAX_FAILED = 20
"""Steps in a row without a finite gradient after which a run gives up."""
_NUM_TIMED = 5
"""Steps after which the time of all is told once more, as measured."""


class TrainingError(ValueError):
    """Training cannot go on; the message says what to change."""


@dataclass
class Training:
    """A run with all its parts."""

    recipe: Recipe
    """All choices."""
    folder: RunFolder
    """Its files."""
    corpus: Corpus
    """What is trained on."""
    recognizer: Recognizer
    """The model."""
    updates: Updates
    """Makes steps."""
    averaging: Averaging
    """The mean of the parameters over steps."""
    keeper: Keeper
    """Writes checkpoints and the model."""
    loader: BatchLoader
    """Batches of training data."""
    dev_loader: BatchLoader | None
    """Batches of development data, if there is any."""
    group: ProcessGroup
    """This process among all that train together."""
    display: Display
    """For whoever watches."""
    log: RunLog | None
    """The log; only the first process has one."""
    state: RunState
    """How far the run is."""

    def run(self, interruption: Interruption) -> bool:
        """Trains to the end.

        Args:
            interruption: a request to stop earlier.

        Returns:
            Whether the end was reached; False if the run was interrupted, and saved.

        Raises:
            CheckpointError: if a checkpoint cannot be written.
            TrainingError: if the gradients are not finite any more.
        """
        config = self.recipe.training
        batches = self._batches()
        if not self._is_over():
            batches = self._foretold(batches)
        meter = Meter()
        while not self._is_over():
            step = self.state.step + 1
            with meter.waiting():
                share = list(islice(batches, config.accumulation))
            result = self.updates.step(step, share, interruption.is_requested)
            self.averaging.update(step)
            self._count(step, share, result)

            is_last = step == config.num_steps
            meter.add(result)
            self._report(meter, result, is_logged=is_last or step % config.log_every == 0)

            is_due = is_last or result.is_interrupted or step % config.checkpoint_every == 0
            with meter.paused():
                if self.dev_loader and (is_last or step % config.evaluate_every == 0):
                    self._evaluate(self.dev_loader)
                    is_due = True
                if is_due:
                    self.keeper.save(self.state)
            if result.is_interrupted and not self._is_over():
                return False
        self.keeper.write_model(self.state)
        self._write("finish")
        return True

    def _is_over(self) -> bool:
        patience = self.recipe.training.patience
        is_hopeless = patience is not None and self.state.num_worse >= patience
        return is_hopeless or self.state.step >= self.recipe.training.num_steps

    def _batches(self) -> Iterator[Batch]:
        """This process's share of each batch, from the next one on, without end."""
        plan = plan_forever(**self._planned(), epoch=self.state.epoch, index=self.state.batch)
        return self.loader.load(plan)

    def _planned(self) -> dict[str, Any]:
        """Of what the batches are made."""
        return {
            "durations": [utterance.duration for utterance in self.corpus.utterances],
            "seed": self.recipe.training.seed,
            "batch_seconds": self.recipe.data.batch_seconds,
            "max_batch_size": self.recipe.data.max_batch_size,
        }

    def _foretold(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Says how long the run will take, by a trial of the first batch; gives all batches.

        The steps do not notice it: each draws its random numbers from a seed of its own.
        """
        config = self.recipe.training
        share = list(islice(batches, config.accumulation))
        tried = max(share, key=lambda batch: int(batch.num_features.sum()))
        num_frames = int(tried.num_features.sum())
        if num_frames:
            seconds = self.updates.try_batch(self.state.step + 1, tried) / num_frames
            num_batches = len(plan_batches(**self._planned(), epoch=self.state.epoch))
            num_planned = self.corpus.num_frames / num_batches / self.group.world_size
            seconds *= config.accumulation * num_planned
            left = config.num_steps - self.state.step
            self.display.tell(
                f"about {seconds:.2f} s per step, by a trial of one batch: {left} steps take about "
                f"{format_seconds(left * seconds)}, evaluations apart"
            )
        self.display.begin()
        return chain(share, batches)

    def _count(self, step: int, share: Sequence[Batch], result: StepResult) -> None:
        """Notes where the run is, and names what was skipped."""
        self.state = replace(
            self.state,
            step=step,
            epoch=share[-1].epoch,
            batch=share[-1].index + 1,
            num_skipped=self.state.num_skipped + len(result.skipped),
            num_failed=self.state.num_failed + 1 if result.is_skipped else 0,
            num_averaged=self.averaging.num_averaged,
        )
        if result.skipped:
            utterances = [each._asdict() for each in result.skipped]
            self._write("skipped", is_whole_step=result.is_skipped, utterances=utterances)
            first = result.skipped[0]
            more = f", and {len(result.skipped) - 1} more" if len(result.skipped) > 1 else ""
            self.display.tell(f"step {step}: skipped {first.id}: {first.reason}{more}")
        if self.state.num_failed >= _MAX_FAILED:
            raise TrainingError(
                f"{_MAX_FAILED} steps in a row, the last of them {step}, had no finite gradient; "
                "lower training.learning_rate, or look at the utterances that the log names"
            )

    def _report(self, meter: Meter, result: StepResult, *, is_logged: bool) -> None:
        note = (
            f"loss {meter.loss_per_label:.4f}, learning rate {result.learning_rate:.2e}, "
            f"{meter.frames_per_second():.0f} frames/s"
        )
        if is_logged and self.log is not None:
            self._write("step", **meter.line(result, self.recognizer.lattice))
        self.display.advance(self.state.step, note, is_logged=is_logged)
        if meter.num_steps == _NUM_TIMED:
            left = self.recipe.training.num_steps - self.state.step
            seconds = meter.seconds / _NUM_TIMED
            self.display.tell(
                f"{seconds:.2f} s per step: {left} more take about {format_seconds(left * seconds)}"
            )

    def _evaluate(self, loader: BatchLoader) -> None:
        """Evaluates what would be saved now, and notes whether it is the best so far."""
        config, data = self.recipe.training, self.recipe.data
        batches = loader.load_in_order(data.batch_seconds, data.max_batch_size)
        with self.averaging.applied():
            found = evaluate(self.recognizer, batches, config, self.group)
        best = self.state.best
        is_better = best is None or found.is_better_than(best, config.select_by)
        if is_better:
            self.state = replace(self.state, best=found, best_step=self.state.step, num_worse=0)
        else:
            self.state = replace(self.state, num_worse=self.state.num_worse + 1)
        self._write("evaluation", is_best=is_better, **asdict(found))
        self.display.tell(_told(self.state.step, found, is_better))

    def _write(self, kind: str, **fields: object) -> None:
        if self.log is not None:
            self.log.write(kind, step=self.state.step, epoch=self.state.epoch, **fields)


def _told(step: int, found: Evaluation, is_better: bool) -> str:
    unread = f", {found.num_unread} could not be read" if found.num_unread else ""
    return (
        f"step {step}: dev loss {found.loss:.4f} per label, word error rate "
        f"{found.word_error_rate:.2%}{' (best)' if is_better else ''}{unread}"
    )

"""From a recipe to a run: everything is made ready, or brought back, and the loop begins."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from midge.audio import Augmentation
from midge.configuration import to_table
from midge.data.loading import BatchLoader
from midge.data.utterances import Utterance
from midge.models.recognizer import Recognizer
from midge.progress import format_seconds
from midge.tokens import Tokens
from midge.training.averaging import Averaging
from midge.training.checkpoints import Checkpoint
from midge.training.config import Recipe
from midge.training.corpus import Corpus, Room, read_utterances, training_corpus
from midge.training.distributed import ProcessGroup, process_group
from midge.training.estimate import estimate
from midge.training.initialization import fresh_recognizer, start_from
from midge.training.interruption import Interruption
from midge.training.logs import Display, RunLog, cut_log
from midge.training.loop import Training
from midge.training.output_layer import initialize_blank
from midge.training.run import Keeper, RunFolder, RunState, find_checkpoint, tokens_of
from midge.training.updates import Updates

_Tell = Callable[[str], None]
_MAX_NUM_NAMED = 5
"""Utterances that a line names."""


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended."""

    folder: Path
    """The files of the run."""
    state: RunState
    """How far it is."""
    is_finished: bool
    """Whether the model was written; else the run was interrupted, and can go on."""
    is_first: bool
    """Whether this process is the one of all that shows something."""


def train(
    recipe: Recipe,
    output: str | Path,
    *,
    init_from: str | Path | None = None,
    tensorboard: bool = False,
) -> Outcome:
    """Trains a recognizer, or goes on where such a run was stopped or killed.

    A run that goes on ends with the very parameters of one that was never stopped. Under
    `torchrun` all processes call this together.

    Args:
        recipe: what to train, on what, and how.
        output: folder of the run: checkpoints, log, and in the end `model`.
        init_from: a model whose parameters a new run starts from.
        tensorboard: whether to write TensorBoard's events too.

    Raises:
        ValueError: for a recipe that does not go together with itself, the data or the folder.
        TrainingError: if the gradients are not finite any more.
        OSError: if data cannot be read or the folder not be written.
    """
    with opened_run(recipe, output, init_from=init_from, tensorboard=tensorboard) as training:
        return run(training)


def run(training: Training) -> Outcome:
    """Runs the loop; a request to stop (Ctrl-C) is heeded after the present step."""
    with Interruption() as interruption, training.display:
        is_finished = training.run(interruption)
    return Outcome(training.folder.path, training.state, is_finished, training.group.is_first)


@contextmanager
def opened_run(
    recipe: Recipe,
    output: str | Path,
    *,
    init_from: str | Path | None = None,
    tensorboard: bool = False,
) -> Iterator[Training]:
    """Makes a run ready, or brings it back; the arguments and errors are those of `train`."""
    folder = RunFolder(Path(output))
    with ExitStack() as stack:
        group = stack.enter_context(process_group(recipe.training.device))
        tell: _Tell = _print if group.is_first else _say_nothing
        utterances = read_utterances(recipe.data.train_paths)
        dev = sorted(read_utterances(recipe.data.dev_paths), key=lambda each: each.duration)
        checkpoint = find_checkpoint(folder, recipe, tell)
        if group.is_first:
            folder.check()  # now, not after minutes of reading
        recognizer, corpus = _recognizer(recipe, utterances, checkpoint, init_from, tell)
        group.share(recognizer.to(group.device).train())
        uncovered = _uncovered(dev, recognizer.tokens)
        _describe(recipe, corpus, dev, recognizer, group, tell, uncovered)

        updates = Updates(recognizer, recipe.training, group)
        averaging = Averaging(recognizer, recipe.training)
        keeper = Keeper(folder, recipe, recognizer, updates, averaging, group)
        state = RunState() if checkpoint is None else keeper.restore(checkpoint)
        log = None
        if group.is_first:
            log = _opened_log(recipe, folder, checkpoint, tensorboard, uncovered)
            stack.callback(log.close)
        loader, dev_loader = _loaders(recipe, recognizer, corpus, dev, group, stack)
        yield Training(
            recipe=recipe,
            folder=folder,
            corpus=corpus,
            recognizer=recognizer,
            updates=updates,
            averaging=averaging,
            keeper=keeper,
            loader=loader,
            dev_loader=dev_loader,
            group=group,
            display=Display(recipe.training.num_steps, state.step, is_silent=not group.is_first),
            log=log,
            state=state,
        )


def _recognizer(
    recipe: Recipe,
    utterances: list[Utterance],
    checkpoint: Checkpoint | None,
    init_from: str | Path | None,
    tell: _Tell,
) -> tuple[Recognizer, Corpus]:
    """The model, fresh or with a checkpoint's tokens, and the data that it can be trained on."""
    if checkpoint is None:
        recognizer = fresh_recognizer(recipe, utterances)
    else:
        ignored = "" if init_from is None else f"; {init_from} is for new runs, and not used"
        tell(f"goes on after step {checkpoint.step}{ignored}")
        recognizer = Recognizer(recipe.recognizer, tokens_of(checkpoint))
    speed = recipe.augmentation.fastest_speed
    corpus = training_corpus(utterances, recognizer, recipe.data, speed)
    if checkpoint is None:
        initialize_blank(recognizer.lattice, corpus.labels_per_frame)
        if init_from is not None:
            tell(start_from(recognizer, Path(init_from)))
    return recognizer, corpus


def _loaders(
    recipe: Recipe,
    recognizer: Recognizer,
    corpus: Corpus,
    dev: list[Utterance],
    group: ProcessGroup,
    stack: ExitStack,
) -> tuple[BatchLoader, BatchLoader | None]:
    """Batches of training and of development data, closed with the stack."""
    made_of = functools.partial(
        BatchLoader,
        tokens=recognizer.tokens,
        # A copy: features are made on the CPU, wherever the model is.
        front_end=copy.deepcopy(recognizer.front_end).cpu(),
        num_workers=recipe.data.num_workers,
        rank=group.rank,
        world_size=group.world_size,
    )
    loader = made_of(
        corpus.utterances,
        augmentation=Augmentation(recipe.augmentation, recipe.training.seed),
        can_align=Room(recognizer.lattice.alignment, recognizer.lattice.deduplicate),
    )
    stack.callback(loader.close)
    if not dev:
        return loader, None
    dev_loader = made_of(dev, keeps_all=True)
    stack.callback(dev_loader.close)
    return loader, dev_loader


def _describe(
    recipe: Recipe,
    corpus: Corpus,
    dev: list[Utterance],
    recognizer: Recognizer,
    group: ProcessGroup,
    tell: _Tell,
    uncovered: Mapping[str, str],
) -> None:
    """Says what will be trained on and what that needs."""
    if not group.is_first:
        return
    tell(
        f"{len(corpus.utterances)} utterances to train on, {format_seconds(corpus.seconds)}; "
        f"{corpus.labels_per_frame:.2f} labels per frame of "
        f"{1000 * recognizer.front_end.frame_seconds:.0f} ms; {recognizer.tokens.vocab_size} "
        f"labels; {len(dev)} utterances of development data"
    )
    for reason, ids in corpus.left_out.items():
        tell(f"{len(ids)} utterances are left out of training, {reason}: {ids[0]}, ...")
    if uncovered:
        named = [f"{name} ({characters!r})" for name, characters in uncovered.items()]
        more = ", ..." if len(named) > _MAX_NUM_NAMED else ""
        tell(
            f"{len(named)} utterances of development data have characters that no token spells; "
            "their words are scored, their loss is not: " + ", ".join(named[:_MAX_NUM_NAMED]) + more
        )
    tell(estimate(recognizer, recipe, corpus, group.world_size).describe())


def _uncovered(utterances: Iterable[Utterance], tokens: Tokens) -> dict[str, str]:
    """By id, the characters of references that no token spells."""
    found = {utterance.id: tokens.uncovered(utterance.text) for utterance in utterances}
    return {name: characters for name, characters in found.items() if characters}


def _opened_log(
    recipe: Recipe,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    tensorboard: bool,
    uncovered: Mapping[str, str],
) -> RunLog:
    """The log, without what a killed run wrote after its checkpoint."""
    folder.write_recipe(recipe)
    step = 0 if checkpoint is None else checkpoint.step
    cut_log(folder.log, step if checkpoint else -1)
    log = RunLog(folder.log, folder.tensorboard if tensorboard else None)
    log.write("start", step=step, recipe=to_table(recipe))
    if uncovered and checkpoint is None:
        utterances = [{"id": name, "characters": x} for name, x in uncovered.items()]
        log.write("uncovered", step=step, utterances=utterances)
    return log


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _say_nothing(text: str) -> None:
    """For all processes but the first."""

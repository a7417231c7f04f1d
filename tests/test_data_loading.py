import itertools
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from corpora import tones, write_audio
from midge.audio import Augmentation, AugmentationConfig, FrontEnd, FrontEndConfig
from midge.data import (
    Batch,
    BatchLoader,
    PlannedBatch,
    Utterance,
    plan_batches,
    plan_forever,
    sample_mels,
)
from midge.data.workers import Workers, _interrupted_later
from midge.tokens import TokensConfig, build_tokens

DURATIONS = [0.2 + 0.05 * (i % 7) for i in range(20)]
TEXTS = ["ONE", "TWO", "ONE TWO", "TEN"] * 5
TOKENS = build_tokens(TokensConfig(), [("", "ONE TWO TEN")])


@pytest.fixture(scope="module")
def utterances(tmp_path_factory):
    return tones(tmp_path_factory.mktemp("audio"), DURATIONS, TEXTS)


@pytest.fixture(scope="module")
def front_end(utterances):
    made = FrontEnd(FrontEndConfig())
    made.fit(sample_mels(utterances, made))
    return made


def augmentation(seed=0):
    return Augmentation(AugmentationConfig(noise_probability=0.5), seed)


def plan(epoch=0, index=0):
    limits = {"batch_seconds": 1.5, "max_batch_size": 4}
    return plan_forever(DURATIONS, seed=3, **limits, epoch=epoch, index=index)


def same(a, b):
    fields = vars(a).keys()
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in ((getattr(a, name), getattr(b, name)) for name in fields)
    )


def test_a_batch_holds_what_its_utterances_are(utterances, front_end):
    with BatchLoader(utterances, TOKENS, front_end) as loader:
        (batch,) = loader.load([PlannedBatch(2, 7, [3, 0, 6])])
    assert (batch.epoch, batch.index, batch.ids) == (2, 7, ["u3", "u0", "u6"])
    assert batch.texts == ["TEN", "ONE", "ONE TWO"] and len(batch) == 3
    assert batch.seconds == pytest.approx(sum(DURATIONS[i] for i in (3, 0, 6)))
    assert batch.features.shape == (3, int(batch.num_features.max()), front_end.feature_size)
    assert batch.labels.shape == (3, 7) and batch.labels.dtype == torch.int64
    for row, number in enumerate((3, 0, 6)):
        audio = utterances[number].load()
        features = front_end.features(audio.samples, audio.sample_rate)
        length = int(batch.num_features[row])
        assert torch.equal(batch.features[row, :length], features)
        assert not batch.features[row, length:].any()
        num_labels = int(batch.num_labels[row])
        assert TOKENS.decode(batch.labels[row, :num_labels].tolist()) == TEXTS[number]
        assert not batch.labels[row, num_labels:].any()
    assert batch.skipped == batch.without_labels == ()


@pytest.mark.parametrize("num_workers", [1, 3])
def test_workers_change_nothing(utterances, front_end, num_workers):
    def load(count, workers, **where):
        options = {"augmentation": augmentation(), "num_workers": workers}
        with BatchLoader(utterances, TOKENS, front_end, **options) as loader:
            return list(itertools.islice(loader.load(plan(**where)), count))

    here = load(20, 0)
    there = load(20, num_workers)
    assert all(map(same, here, there))
    assert here[-1].epoch >= 1
    middle = here[9]
    resumed = load(11, num_workers, epoch=middle.epoch, index=middle.index)
    assert all(map(same, here[9:], resumed))


def test_augmentation_differs_between_epochs_and_seeds(utterances, front_end):
    def features(epoch, seed):
        with BatchLoader(utterances, TOKENS, front_end, augmentation=augmentation(seed)) as loader:
            return next(loader.load([PlannedBatch(epoch, 0, [5])])).features

    assert torch.equal(features(0, 0), features(0, 0))
    assert not torch.equal(features(0, 0), features(1, 0))
    assert not torch.equal(features(0, 0), features(0, 1))


def test_a_resumed_run_does_not_read_what_lies_before(utterances, front_end, monkeypatch):
    opened = []
    load = Utterance.load
    monkeypatch.setattr(Utterance, "load", lambda self: opened.append(self.id) or load(self))
    batches = plan_batches(DURATIONS, seed=3, epoch=4, batch_seconds=1.5, max_batch_size=4)
    with BatchLoader(utterances, TOKENS, front_end) as loader:
        next(loader.load(plan(epoch=4, index=5)))
    assert opened == [f"u{i}" for i in batches[5]]


def test_shards_of_a_batch(utterances, front_end):
    def load(rank, world_size):
        options = {"augmentation": augmentation(), "rank": rank, "world_size": world_size}
        with BatchLoader(utterances, TOKENS, front_end, **options) as loader:
            return list(itertools.islice(loader.load(plan()), 6))

    whole = load(0, 1)
    for world_size in (2, 5):
        shards = [load(rank, world_size) for rank in range(world_size)]
        for index, batch in enumerate(whole):
            parts = [shard[index] for shard in shards]
            assert all((part.epoch, part.index) == (batch.epoch, batch.index) for part in parts)
            assert [part.ids for part in parts] == [
                batch.ids[r::world_size] for r in range(world_size)
            ]
            for part in parts:
                for row, name in enumerate(part.ids):
                    length = int(part.num_features[row])
                    expected = batch.features[batch.ids.index(name), :length]
                    assert torch.equal(part.features[row, :length], expected)
    assert any(len(part[0]) == 0 for part in shards)  # a rank without data still gets its batch


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_cannot_be_used_is_named(utterances, front_end, tmp_path, num_workers):
    (tmp_path / "text.wav").write_text("no audio")
    nan = tmp_path / "nan.wav"
    import soundfile

    soundfile.write(nan, np.full(800, np.nan, np.float32), 16000, subtype="FLOAT")
    bad = [
        Utterance(id="missing", audio=str(tmp_path / "nowhere.wav"), duration=0.2, text="ONE"),
        Utterance(id="text", audio=str(tmp_path / "text.wav"), duration=0.2, text="ONE"),
        Utterance(id="nan", audio=str(nan), duration=0.2, text="ONE"),
        Utterance(id="strange", audio=utterances[0].audio, duration=0.2, text="O\u00d1E"),
        Utterance(id="long", audio=utterances[0].audio, duration=0.2, text="TEN " * 20),
    ]
    given = [*utterances[:2], *bad]
    options = {"num_workers": num_workers, "can_align": lambda labels, n: len(labels) <= n}
    with BatchLoader(given, TOKENS, front_end, **options) as loader:
        first, empty = loader.load([PlannedBatch(0, 0, range(7)), PlannedBatch(0, 1, [2, 3])])
        kept = list(BatchLoader(given, TOKENS, front_end, keeps_all=True).load_in_order())
    assert first.ids == ["u0", "u1"]
    reasons = dict(first.skipped)
    assert list(reasons) == ["missing", "text", "nan", "strange", "long"]
    assert "No such file" in reasons["missing"] and "holds no audio" in reasons["text"]
    assert "not finite" in reasons["nan"] and "strange" in reasons["strange"]
    assert reasons["long"] == "79 labels have no path over 17 frames"
    assert len(empty) == 0 and len(empty.skipped) == 2 and empty.seconds == 0
    assert empty.features.shape == (0, 0, front_end.feature_size)
    assert empty.labels.shape == (0, 0)
    ids = [name for batch in kept for name in batch.ids]
    assert ids == ["u0", "u1", "strange", "long"]  # in evaluation only what has no audio is missing
    (unlabelled,) = [each for batch in kept for each in batch.without_labels]
    assert unlabelled.id == "strange"
    assert [name for batch in kept for name, _ in batch.skipped] == ["missing", "text", "nan"]


def test_evaluation_is_in_order(utterances, front_end):
    with BatchLoader(utterances, TOKENS, front_end, num_workers=2, keeps_all=True) as loader:
        batches = list(loader.load_in_order(batch_seconds=2.0))
        again = list(loader.load_in_order(batch_seconds=2.0, max_batch_size=1))
    assert [name for batch in batches for name in batch.ids] == [each.id for each in utterances]
    assert [batch.index for batch in batches] == list(range(len(batches)))
    assert [batch.ids for batch in again] == [[each.id] for each in utterances]


def test_normalization_from_a_sample(utterances):
    front_end = FrontEnd(FrontEndConfig())
    here = list(sample_mels(utterances, front_end, num_utterances=5, seed=1))
    there = list(sample_mels(utterances, front_end, num_utterances=5, seed=1, num_workers=2))
    assert len(here) == 5 and all(map(torch.equal, here, there))
    other = list(sample_mels(utterances, front_end, num_utterances=5, seed=2))
    assert not all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(here, other, strict=True)
    )
    assert len(list(sample_mels(utterances, front_end))) == len(utterances)
    front_end.fit(sample_mels(utterances, front_end))
    normalized = torch.cat(
        [front_end.normalize(mels) for mels in sample_mels(utterances, front_end)]
    )
    torch.testing.assert_close(normalized.mean(0), torch.zeros(80), atol=1e-4, rtol=0)


def test_normalization_without_audio(utterances):
    missing = Utterance(id="missing", audio="nowhere.wav", duration=1.0, text="ONE")
    front_end = FrontEnd(FrontEndConfig())
    assert len(list(sample_mels([missing, utterances[0]], front_end))) == 1
    with pytest.raises(ValueError, match="no utterance can be read .* missing: .*No such file"):
        list(sample_mels([missing], front_end))
    with pytest.raises(ValueError, match="there is none"):
        list(sample_mels([], front_end))


def test_a_batch_between_processes_needs_no_shared_memory(utterances, front_end):
    with BatchLoader(utterances, TOKENS, front_end) as loader:
        batch = next(loader.load([PlannedBatch(0, 0, [0, 1])]))
    rebuild, arguments = batch.__reduce__()
    assert not any(isinstance(x, torch.Tensor) for x in arguments[0].values())
    copy = rebuild(*arguments)
    assert isinstance(copy, Batch) and same(copy, batch)


def test_loading_draws_nothing_from_the_global_generator(utterances, front_end):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with BatchLoader(
        utterances, TOKENS, front_end, augmentation=augmentation(), num_workers=1
    ) as loader:
        next(loader.load(plan()))
    assert torch.equal(torch.get_rng_state(), before)


def square(number):
    if number < 0:
        raise LookupError(f"a bug at {number}")
    return number * number


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_results_come_in_order(num_workers):
    workers = Workers(square, num_workers)
    assert list(workers.run(range(40))) == [i * i for i in range(40)]
    assert list(itertools.islice(workers.run(itertools.count()), 5)) == [0, 1, 4, 9, 16]
    assert list(workers.run([])) == []
    assert list(workers.run([3])) == [9]
    workers.close()
    assert list(workers.run([2])) == [4]  # it starts again
    workers.close()


def test_an_old_run_does_not_mix_with_a_new_one():
    workers = Workers(square, 1)
    old = workers.run(itertools.count())
    assert next(old) == 0
    assert list(workers.run([5])) == [25]
    with pytest.raises(RuntimeError, match="a new one has begun"):
        next(old)
    workers.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_bug_in_a_worker_is_told(num_workers):
    workers = Workers(square, num_workers)
    with pytest.raises(LookupError, match="a bug at -1"):
        list(workers.run([1, -1]))
    workers.close()


def test_close_ends_the_processes():
    workers = Workers(process_id, 2)
    processes = set(workers.run(range(6)))
    assert len(processes) == 2 and os.getpid() not in processes
    workers.close()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def process_id(number):
    return os.getpid()


@pytest.mark.slow
def test_threads_before_the_fork_do_no_harm(tmp_path):
    """A child that opened a second thread after the parent's parallel region would hang."""
    write_audio(tmp_path / "a.wav")
    code = f"""
        import torch
        torch.set_num_threads(2)
        torch.randn(512, 512) @ torch.randn(512, 512)
        torch.randn(400000).sigmoid().sum()
        from midge.audio import FrontEnd, FrontEndConfig
        from midge.data import Utterance, sample_mels
        given = [Utterance(id="a", audio={str(tmp_path / "a.wav")!r}, duration=0.5)]
        front_end = FrontEnd(FrontEndConfig())
        front_end.fit(sample_mels(given, front_end, num_workers=2))
        print(torch.get_num_threads(), float(front_end.mean[0]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith("2 ") and done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interruption_reaches_the_first_process_alone(name):
    code = f"""
        import itertools, os, signal, sys
        from midge.data.workers import Workers
        def wait(number):
            return number
        told = []
        signal.signal(signal.{name}, lambda *_: told.append(number))
        workers = Workers(wait, 2)
        for number in workers.run(itertools.count()):
            if number == 5:
                os.killpg(0, signal.{name})
            if number == 100:  # the step that was begun still gets its data
                break
        workers.close()
        print("ended", told)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
        check=True,
    )
    assert done.stdout == "ended [5]\n" and done.stderr == ""


def test_wrong_arguments(utterances, front_end):
    with pytest.raises(ValueError, match="num_workers should be at least 0"):
        BatchLoader(utterances, TOKENS, front_end, num_workers=-1)
    with pytest.raises(ValueError, match="rank should be in"):
        BatchLoader(utterances, TOKENS, front_end, rank=2, world_size=2)


def test_an_interruption_waits_for_the_queues():
    """Raised inside a queue it would leave a lock held; a second one is heeded at once."""
    reached = []
    with pytest.raises(KeyboardInterrupt), _interrupted_later():
        signal.raise_signal(signal.SIGINT)
        reached.append("end")
    assert reached == ["end"]
    with pytest.raises(KeyboardInterrupt), _interrupted_later():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        reached.append("never")
    assert reached == ["end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(
            """
            for number in workers.run(itertools.count()):
                os.kill(os.getpid(), signal.SIGKILL)  # results fill the pipe to us
            """,
            id="while results wait",
        ),
        pytest.param(
            """
            start = midge.data.workers._start_worker
            def start_late(parent, number):
                os.kill(parent, signal.SIGKILL)
                while os.getppid() == parent:
                    time.sleep(0.01)
                start(parent, number)
            midge.data.workers._start_worker = start_late
            next(workers.run(itertools.count()))
            """,
            id="while they start",
        ),
    ],
)
def test_workers_end_with_a_parent_that_is_killed(killed):
    """What they inherit, here the pipe that this test reads, is closed."""
    code = """
        import itertools, os, signal, time
        import midge.data.workers
        workers = midge.data.workers.Workers(lambda number: bytes(1_000_000), 1)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code) + textwrap.dedent(killed)],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr

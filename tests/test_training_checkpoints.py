"""Checkpoints are whole or not there, and an old one is never lost to a new one."""

import errno
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
import torch

from midge.training import Checkpoint, CheckpointError, CheckpointFolder
from midge.training.checkpoints import write_folder


def checkpoint(step, size=3):
    tensors = {"model": {"a.b": torch.full((size,), step / 7)}, "optimizer": {}}
    return Checkpoint(step, tensors, {"run": {"step": step}, "text": "ü"})


def test_what_is_read_is_what_was_written(tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoints", num_kept=2)
    assert folder.load_last(print) is None
    folder.save(checkpoint(5))
    read = folder.load_last(print)
    assert read.step == 5
    assert read.state["run"] == {"step": 5} and read.state["text"] == "ü"
    assert torch.equal(read.tensors["model"]["a.b"], checkpoint(5).tensors["model"]["a.b"])
    assert read.tensors["optimizer"] == {}


def test_the_last_and_the_best_are_kept(tmp_path):
    folder = CheckpointFolder(tmp_path, num_kept=2)
    for step in (10, 20, 30, 40, 1_000_000):
        folder.save(checkpoint(step), best_step=20 if step >= 20 else None)
    assert folder.steps() == [20, 40, 1_000_000]
    assert {path.name for path in tmp_path.iterdir()} == {
        "step-000020",
        "step-000040",
        "step-1000000",
    }


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    folder = CheckpointFolder(tmp_path, num_kept=2)
    folder.save(checkpoint(1, size=3))
    folder.save(checkpoint(1, size=4))
    assert folder.load(1).tensors["model"]["a.b"].shape == (4,)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "state.json").write_text("{"),
        lambda path: (path / "state.json").write_text("{}"),
        lambda path: (path / "state.json").unlink(),
        lambda path: (path / "model.safetensors").unlink(),
        lambda path: os.truncate(path / "model.safetensors", 20),
        lambda path: (path / "state.json").write_text('{"format_version": 99}'),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_by_name(tmp_path, damage):
    folder = CheckpointFolder(tmp_path, num_kept=3)
    folder.save(checkpoint(1))
    folder.save(checkpoint(2))
    damage(tmp_path / "step-000002")
    told = []
    assert folder.load_last(told.append).step == 1
    assert len(told) == 1 and "step-000002" in told[0]
    damage(tmp_path / "step-000001")
    with pytest.raises(ValueError, match="all checkpoints"):
        folder.load_last(told.append)


def test_what_a_killed_process_left_is_ignored_and_removed(tmp_path):
    folder = CheckpointFolder(tmp_path, num_kept=2)
    folder.save(checkpoint(1))
    (tmp_path / ".unfinished-step-000002").mkdir()
    (tmp_path / ".unfinished-step-000002" / "model.safetensors").write_bytes(b"half")
    assert folder.steps() == [1]
    folder.save(checkpoint(3))
    assert {path.name for path in tmp_path.iterdir()} == {"step-000001", "step-000003"}


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path):
    folder = CheckpointFolder(tmp_path, num_kept=1)
    folder.save(checkpoint(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A limit on the size of files fails like a full disk: in the middle of a write.
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match="step 2 .* last good one is that of step 1") as e:
            folder.save(checkpoint(2, size=100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert e.value.errno == errno.EFBIG
    assert {path.name for path in tmp_path.iterdir()} == {"step-000001"}
    assert folder.load_last(print).step == 1


def test_a_folder_that_cannot_be_filled_is_left_as_it_was(tmp_path):
    path = tmp_path / "model"
    write_folder(path, lambda folder: (folder / "old").write_text("old"))

    def fail(folder):
        (folder / "new").write_text("new")
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        write_folder(path, fail)
    assert [each.name for each in path.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [path]


WATCHED = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
"""Python's audit events of calls that change the disk."""


def save_until_killed(folder: Path, number: int, saved: int) -> None:
    """Saves three checkpoints, and kills its process before the n-th call that changes the disk.

    Each finished one is told to the file descriptor `saved`.
    """
    count = 0

    def watch(event, arguments):
        nonlocal count
        if event in WATCHED and str(folder) in str(arguments[0]):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    checkpoints = CheckpointFolder(folder, num_kept=1)
    for step in (1, 2, 3):
        checkpoints.save(checkpoint(step))
        os.write(saved, bytes([step]))


def in_a_child(function, *arguments) -> int:
    """The exit status of a forked process that calls a function."""
    child = os.fork()
    if child == 0:
        try:
            function(*arguments)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_killed_at_any_call_of_the_system_a_whole_checkpoint_is_there(tmp_path):
    for number in range(1, 200):
        folder = tmp_path / f"run{number}"
        reading, writing = os.pipe()
        code = in_a_child(save_until_killed, folder, number, writing)
        os.close(writing)
        with open(reading, "rb") as pipe:
            last_saved = max(pipe.read(), default=0)
        found = CheckpointFolder(folder, num_kept=1).load_last(pytest.fail)
        if code == 0:
            assert found.step == 3
            break
        assert code == -signal.SIGKILL
        assert (found.step if found else 0) >= last_saved
        # The next process goes on as if nothing had happened.
        CheckpointFolder(folder, num_kept=1).save(checkpoint(4))
        assert [path.name for path in folder.iterdir()] == ["step-000004"]
    assert number > 20  # so many calls there were, and the process was killed before each

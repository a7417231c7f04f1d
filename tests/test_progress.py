import io

import pytest

from midge.progress import Progress, format_seconds


class Clock:
    """A clock that a test winds by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(stream, *, total=10, seconds=2.0, **options):
    """Ten steps of two seconds each."""
    clock = Clock()
    with Progress(total, "job", stream=stream, clock=clock, **options) as progress:
        for step in range(total):
            clock.now += seconds
            progress.advance(f"loss {step}")
    return stream.getvalue()


def test_a_log_gets_a_plain_line_now_and_then_and_one_at_the_end():
    assert run(io.StringIO(), log_seconds=8.0).splitlines() == [
        "job: 4/10 steps, 0.5/s, 0:12 left, loss 3",
        "job: 8/10 steps, 0.5/s, 0:04 left, loss 7",
        "job: 10/10 steps, 0.5/s, 0:20 in all, loss 9",
    ]


def test_a_terminal_gets_one_line_redrawn_in_place(monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    shown = run(Terminal())
    assert shown.count("\n") == 1 and shown.endswith("\n")
    drawn = shown.rstrip("\n").split("\r")[1:]
    assert len(drawn) == 10 + 1  # one per step, and the last
    assert drawn[4].startswith("[##########..........]  50% job: 5/10 steps, 0.5/s, 0:10 left")
    assert {len(line) for line in drawn} == {89}  # each covers the one before, and none wraps


def test_a_narrow_terminal_cuts_the_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    assert {len(line) for line in run(Terminal()).rstrip("\n").split("\r")[1:]} == {29}


def test_a_terminal_is_not_redrawn_faster_than_one_can_see():
    assert run(Terminal(), total=100, seconds=0.01).count("\r") <= 10 + 1


def test_a_log_keeps_quiet_when_the_job_is_short():
    assert run(io.StringIO(), seconds=0.1).splitlines() == [
        "job: 10/10 steps, 10.0/s, 0:01 in all, loss 9"
    ]


def test_an_error_still_ends_the_line():
    stream = Terminal()
    with pytest.raises(RuntimeError), Progress(3, stream=stream, clock=Clock()) as progress:
        progress.advance()
        raise RuntimeError
    assert stream.getvalue().endswith("\n")
    assert "1/3 steps" in stream.getvalue()


def test_nothing_to_do_is_done():
    stream = Terminal()
    Progress(0, stream=stream, clock=Clock()).close()
    assert "100%" in stream.getvalue()


def test_a_negative_total_is_refused():
    with pytest.raises(ValueError, match="total should be at least 0, got -1"):
        Progress(-1)


@pytest.mark.parametrize(
    "seconds, text", [(0.2, "0:00"), (59.7, "1:00"), (61, "1:01"), (7384, "2:03:04")]
)
def test_seconds_read_as_a_clock(seconds, text):
    assert format_seconds(seconds) == text

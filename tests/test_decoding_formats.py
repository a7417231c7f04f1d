import html
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.decoding import FORMATS, formats
from midge.models import TimedWord, Transcript

ODD = ['say_"hi"', "<b>", "&", "-->", "{x}", "naïve", "ß", "100%", "a;b", "語"]


def transcript(words, seconds, confidence=None):
    timed = tuple(TimedWord(*word, confidence) for word in words)
    text = " ".join(word.text for word in timed)
    return Transcript(text, timed, (), (), -1.5, seconds)


@st.composite
def transcripts(draw):
    """Words with times as bad as a path may give them: equal, unordered, beyond the end."""
    times = st.floats(-0.5, 12, allow_nan=False)
    texts = st.sampled_from(ODD) | st.text("ABC", min_size=1, max_size=12)
    words = draw(st.lists(st.tuples(texts, times, times), max_size=40))
    seconds = draw(st.floats(0.05, 10))
    confidence = draw(st.none() | st.floats(0, 1))
    return transcript(words, seconds, confidence)


FEW = transcript([("ONE", 0.1, 0.45), ("TWO", 0.5, 0.5), ("THREE", 2.0, 2.61)], 2.6, 0.25)
EMPTY = transcript([], 1.5)


def clock(text, point):
    """Seconds of hh:mm:ss,mmm."""
    hours, minutes, seconds, rest = re.fullmatch(
        rf"(\d\d+):([0-5]\d):([0-5]\d){re.escape(point)}(\d{{3}})", text
    ).groups()
    return 3600 * int(hours) + 60 * int(minutes) + int(seconds) + int(rest) / 1000


def parse_ctm(text):
    rows = []
    for line in text.splitlines():
        name, channel, start, duration, word, *confidence = line.split(" ")
        assert len(confidence) <= 1
        rows.append((name, channel, float(start), float(duration), word, *map(float, confidence)))
    return rows


def parse_srt(text):
    """Blocks between empty lines: a number, the times, then text."""
    cues = []
    for number, block in enumerate(text.rstrip("\n").split("\n\n") if text else [], start=1):
        index, times, *lines = block.split("\n")
        assert int(index) == number and lines
        start, end = times.split(" --> ")
        cues.append((clock(start, ","), clock(end, ","), lines))
    return cues


def parse_webvtt(text):
    header, *blocks = text.rstrip("\n").split("\n\n")
    assert header == "WEBVTT"
    cues = []
    for block in blocks:
        times, *lines = block.split("\n")
        start, end = times.split(" --> ")
        assert lines and not any("-->" in line or "<" in line for line in lines)
        cues.append((clock(start, "."), clock(end, "."), [html.unescape(x) for x in lines]))
    return cues


def parse_textgrid(text):
    """Praat reads the numbers, quoted strings and flags of a file, in order, and no more."""
    tokens = re.findall(r'"(?:[^"]|"")*"|<[a-z]+>|(?<![\w\[])-?\d+(?:\.\d+)?(?![\w\]])', text)
    values = [
        x[1:-1].replace('""', '"') if x[0] == '"' else x if x[0] == "<" else float(x)
        for x in tokens
    ]
    assert values[:2] == ["ooTextFile", "TextGrid"]
    low, high, exists, num_tiers, kind, name, tier_low, tier_high, count = values[2:11]
    assert (exists, num_tiers, kind, name) == ("<exists>", 1, "IntervalTier", "words")
    assert (low, high) == (tier_low, tier_high)
    rest = values[11:]
    assert len(rest) == 3 * count
    return high, list(zip(rest[::3], rest[1::3], rest[2::3], strict=True))


def assert_in_order(times, seconds):
    """Each lasts, begins after the one before, and ends within the recording."""
    last = 0.0
    for start, end in times:
        assert last <= start + 1e-9 and start < end
        last = end
    assert last <= seconds + 0.0005 + 1e-9


@given(transcripts())
@settings(deadline=None)
def test_ctm(given):
    rows = parse_ctm(formats.to_ctm(given, "a b"))
    assert [row[4] for row in rows] == [word.text for word in given.words]
    assert all(row[:2] == ("a%20b", "1") for row in rows)
    assert_in_order([(row[2], row[2] + row[3]) for row in rows], given.seconds)
    for row, word in zip(rows, given.words, strict=True):
        assert len(row) == (5 if word.confidence is None else 6)
        assert word.confidence is None or abs(row[5] - word.confidence) <= 0.00005


@given(transcripts())
@settings(deadline=None)
def test_captions(given):
    words = [word.text for word in given.words]
    for cues, shown in [
        (parse_srt(formats.to_srt(given)), [x.replace("-->", "->") for x in words]),
        (parse_webvtt(formats.to_webvtt(given)), words),
    ]:
        assert [word for *_, lines in cues for line in lines for word in line.split()] == shown
        assert_in_order([cue[:2] for cue in cues], given.seconds)
        for start, end, lines in cues:
            assert len(lines) <= 2 and max(map(len, lines)) <= formats.MAX_LINE_SIZE
            assert end - start <= formats.MAX_CAPTION_SECONDS + 1e-9 or len(lines[0].split()) == 1


@given(transcripts())
@settings(deadline=None)
def test_textgrid(given):
    end, intervals = parse_textgrid(formats.to_textgrid(given))
    assert end == pytest.approx(given.seconds, abs=0.0005)
    assert [text for *_, text in intervals if text] == [word.text for word in given.words]
    starts, ends = [each[0] for each in intervals], [each[1] for each in intervals]
    assert starts == [0.0, *ends[:-1]] and ends[-1] == end  # no gap and no overlap
    assert all(start < stop for start, stop, _ in intervals)


@given(transcripts())
@settings(deadline=None)
def test_json(given):
    text = formats.to_json(given, 'x"y')
    assert text.count("\n") == 1
    found = json.loads(text)
    assert found["recording"] == 'x"y' and found["text"] == given.text
    assert [word["word"] for word in found["words"]] == [word.text for word in given.words]
    assert_in_order([(word["start"], word["end"]) for word in found["words"]], given.seconds)
    assert {word["confidence"] for word in found["words"]} <= {
        word.confidence for word in given.words
    }


def test_json_has_no_infinity():
    lost = Transcript("", (), (), (), float("-inf"), 1.0)
    assert json.loads(formats.to_json(lost, "a"), parse_constant=pytest.fail)["score"] is None


NAMES = st.text(min_size=1, max_size=8)


@given(st.dictionaries(NAMES, st.lists(st.sampled_from(["A", "B", "(C)", "語"]), max_size=4)))
@settings(deadline=None)
def test_trn_is_read_again(texts):
    lines = {name: " ".join(words) for name, words in texts.items()}
    written = "".join(formats.trn_line(text, name) for name, text in lines.items())
    assert formats.read_trn(written) == lines


@given(st.text(max_size=12))
@settings(deadline=None)
def test_a_name_is_escaped_and_found_again(name):
    escaped = formats.escaped_name(name)
    assert not re.search(r"[\s()]", escaped)
    assert formats.unescaped_name(escaped) == name


@pytest.mark.parametrize("line", ["ONE TWO", "ONE (", "ONE ()", "(a) ONE"])
def test_a_line_of_trn_without_a_name_is_refused(line):
    with pytest.raises(ValueError, match="line 2 should end in"):
        formats.read_trn(f"A (x)\n{line}\n")


def test_a_name_twice_in_trn_is_refused():
    with pytest.raises(ValueError, match="line 3: x comes twice"):
        formats.read_trn("A (x)\n;; a comment\nB (x)\n")


TEXTGRID_START = """\
File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0.000
xmax = 2.600
tiers? <exists>
size = 1
item []:
    item [1]:
        class = "IntervalTier"
        name = "words"
        xmin = 0.000
        xmax = 2.600
        intervals: size = 6
        intervals [1]:
            xmin = 0.000
            xmax = 0.100
            text = ""
        intervals [2]:
            xmin = 0.100
            xmax = 0.450
            text = "ONE"
"""


def test_every_format_of_a_few_words_by_hand():
    written = {name: each.write(FEW, "rec") for name, each in FORMATS.items()}
    assert written["text"] == "ONE TWO THREE\n"
    assert written["trn"] == "ONE TWO THREE (rec)\n"
    assert written["ctm"] == (
        "rec 1 0.100 0.350 ONE 0.2500\n"
        "rec 1 0.500 0.001 TWO 0.2500\n"
        "rec 1 2.000 0.600 THREE 0.2500\n"
    )
    assert written["srt"] == (
        "1\n00:00:00,100 --> 00:00:00,501\nONE TWO\n\n2\n00:00:02,000 --> 00:00:02,600\nTHREE\n"
    )
    assert written["vtt"] == (
        "WEBVTT\n\n00:00:00.100 --> 00:00:00.501\nONE TWO\n\n00:00:02.000 --> 00:00:02.600\nTHREE\n"
    )
    assert json.loads(written["json"])["words"][1] == {
        "word": "TWO",
        "start": 0.5,
        "end": 0.501,
        "confidence": 0.25,
    }
    assert written["textgrid"].startswith(TEXTGRID_START)


def test_every_format_of_silence():
    written = {name: each.write(EMPTY, "rec") for name, each in FORMATS.items()}
    assert written["text"] == "\n" and written["trn"] == "(rec)\n"
    assert written["ctm"] == "" == written["srt"] and written["vtt"] == "WEBVTT\n"
    assert json.loads(written["json"])["words"] == []
    assert parse_textgrid(written["textgrid"]) == (1.5, [(0.0, 1.5, "")])


def test_hours_are_written_as_such():
    late = transcript([("END", 7199.5, 7325.0)], 7325.0)
    assert parse_srt(formats.to_srt(late)) == [(7199.5, 7325.0, ["END"])]
    assert "02:02:05.000" in formats.to_webvtt(late)


def test_words_without_any_time_are_refused():
    with pytest.raises(ValueError, match="rec: 2 words in 1 ms leave no time"):
        formats.to_ctm(transcript([("A", 0, 0), ("B", 0, 0)], 0.0), "rec")
    with pytest.raises(ValueError, match="rec: the time of 'A' should be finite, got nan"):
        formats.to_srt(transcript([("A", float("nan"), 1.0)], 1.0), "rec")

"""Parts of the page that can be tested alone, each in a real browser, against Python's."""

import json
import random

import numpy as np
import pytest
import soundfile
import soxr

from midge.decoding.formats import json_object, to_srt
from midge.models import TimedWord, Transcript
from recognizers import noise

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(browser, server):
    """A page of the server's address that runs nothing by itself."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{server.port}/health")
    yield page
    context.close()


def run(page, module, body, argument=None):
    """Calls `body(module, argument)` in the page."""
    script = f"""async (argument) => {{
      const module = await import("/static/{module}");
      return await ({body})(module, argument);
    }}"""
    return page.evaluate(script, argument)


RESAMPLE = """({ Resampler }, [samples, inputRate, outputRate, sizes]) => {
  const resampler = new Resampler(inputRate, outputRate);
  const found = [];
  let place = 0;
  for (const size of sizes) {
    found.push(...resampler.accept(Float32Array.from(samples.slice(place, place + size))));
    place += size;
  }
  found.push(...resampler.finish());
  return found;
}"""


def resampled(page, samples, input_rate, output_rate, sizes):
    argument = [samples.tolist(), input_rate, output_rate, sizes]
    return np.array(run(page, "resampler.js", RESAMPLE, argument))


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000, 96000])
def test_resampling(page, rate):
    time = np.arange(rate // 4) / rate
    samples = 0.4 * np.sin(2 * np.pi * 440 * time) + 0.3 * np.sin(2 * np.pi * 2900 * time)
    found = resampled(page, samples, rate, 16000, [len(samples)])
    assert abs(len(found) - 4000) <= 1
    expected = soxr.resample(samples, rate, 16000)
    inner = slice(200, 3700)  # both invent what lies beyond the ends
    assert np.abs(found[inner] - expected[inner]).max() < 2e-3


def test_what_lies_beyond_half_the_rate_is_removed(page):
    time = np.arange(12000) / 48000
    samples = np.sin(2 * np.pi * 11000 * time)
    found = resampled(page, samples, 48000, 16000, [len(samples)])
    assert np.abs(found[200:3700]).max() < 1e-3


@pytest.mark.parametrize("rate", [16000, 44100, 48000])
def test_pieces_do_not_matter(page, rate):
    samples = noise(0.5, seed=1)
    whole = resampled(page, samples, rate, 16000, [len(samples)])
    pieces = resampled(page, samples, rate, 16000, [128] * (len(samples) // 128 + 1))
    assert (whole == pieces).all()


HEADERS = """({ headerOf }, files) =>
  files.map((bytes) => headerOf(new Uint8Array(bytes).buffer))"""


@pytest.mark.parametrize(
    ("suffix", "subtype", "rate", "bits"),
    [
        ("wav", "PCM_16", 8000, 16),
        ("wav", "PCM_24", 44100, None),
        ("wav", "FLOAT", 44100, None),
        ("flac", "PCM_16", 22050, 16),
        ("flac", "PCM_24", 48000, 24),
        ("ogg", "VORBIS", 44100, None),
        ("ogg", "OPUS", 48000, None),
        ("mp3", "MPEG_LAYER_III", 16000, None),
        ("mp3", "MPEG_LAYER_III", 44100, None),
        ("mp3", "MPEG_LAYER_III", 48000, None),
    ],
)
def test_what_a_file_says_of_itself(page, tmp_path, suffix, subtype, rate, bits):
    path = tmp_path / f"sound.{suffix}"
    soundfile.write(path, noise(0.5, seed=2), rate, subtype=subtype)
    (found,) = run(page, "audio_header.js", HEADERS, [list(path.read_bytes())])
    assert found["sampleRate"] == rate
    if bits is not None:
        assert found["bits"] == bits
    else:
        assert found["bits"] != 16


@pytest.mark.parametrize(("suffix", "rate"), [("aiff", 16000), ("wav", 192000), ("wav", 4000)])
def test_files_that_the_browser_resamples(page, tmp_path, suffix, rate):
    path = tmp_path / f"sound.{suffix}"
    soundfile.write(path, noise(0.5, seed=2), rate)
    assert run(page, "audio_header.js", HEADERS, [list(path.read_bytes())]) == [None]


def test_headers_of_junk(page):
    random_ = random.Random(0)
    starts = [b"", b"RIFF", b"RIFF0000WAVE", b"RIFF0000WAVEfmt ", b"fLaC", b"OggS", b"ID3"]
    starts += [b"\xff\xfb"]
    files = [
        start + random_.randbytes(random_.randrange(40)) for start in starts for _ in range(50)
    ]
    found = run(page, "audio_header.js", HEADERS, [list(file) for file in files])
    assert all(each is None or 8000 <= each["sampleRate"] <= 96000 for each in found)


def transcripts(num_cases):
    """Transcripts at random, some with more words than fit, some that end in the middle."""
    random_ = random.Random(1)
    alphabet = ["ONE", "Ü", "NAÏVE", "-->", "a&b", "𝒳𝒴", "X" * 50, "TWENTY-ONE", "日本語"]
    for _ in range(num_cases):
        words, end = [], 0.0
        for _ in range(random_.randrange(40)):
            start = end + random_.choice([0.0, 0.0, 0.03, 0.4, 1.0005, 2.5])
            end = start + random_.choice([0.0, 0.0004, 0.03, 0.5, 0.0005])
            words.append(TimedWord(random_.choice(alphabet), start, end, random_.random()))
        seconds = end + random_.choice([0.05, 0.5005, 1.0])
        text = " ".join(word.text for word in words)
        yield Transcript(text, tuple(words), (), (), 0.0, seconds)


FORMAT = """async (formats, cases) => {
  const { Transcript } = await import("/static/transcript.js");
  return cases.map(({ words, seconds }) => {
    const transcript = new Transcript();
    transcript.begin("talk.wav");
    transcript.lengthen(seconds);
    transcript.close({ start: 0, end: seconds, words, alternatives: [] });
    transcript.end();
    return [formats.toText(transcript), formats.toSrt(transcript), formats.toJson(transcript)];
  });
}"""


def test_formats_are_those_of_python(page):
    cases = list(transcripts(200))
    argument = [
        {"words": [vars(word) for word in case.words], "seconds": case.seconds} for case in cases
    ]
    for case, (text, srt, found) in zip(
        cases, run(page, "formats.js", FORMAT, argument), strict=True
    ):
        assert text == (case.text + "\n" if case.words else "")
        assert srt == to_srt(case)
        expected = json_object(case, "talk.wav")
        found = json.loads(found)
        for key in ("recording", "text", "words", "seconds"):
            assert found[key] == expected[key]


def test_kept_audio(page):
    body = """({ KeptAudio }, steps) => {
      const kept = new KeptAudio(60);
      let next = 0;
      return steps.map(([size, drop, since]) => {
        kept.push(Float32Array.from({ length: size }, (_, index) => next + index));
        next += size;
        kept.dropBefore(drop);
        const found = [...kept.since(since)].flatMap((piece) => [...piece]);
        return [kept.start, kept.end, found];
      });
    }"""
    random_ = random.Random(3)
    steps, end = [], 0
    for _ in range(300):
        size = random_.randrange(1, 12)
        end += size
        steps.append([size, end - random_.randrange(80), end - random_.randrange(40)])
    last_start = end = 0
    for (size, drop, since), (start, found_end, found) in zip(
        steps, run(page, "kept_audio.js", body, steps), strict=True
    ):
        end += size
        assert found_end == end and last_start <= start <= end
        assert end - start <= 60
        assert start >= drop, "what is no longer needed is forgotten"
        assert start == max(drop, last_start) or end - max(drop, last_start) > 60 - 12
        assert found == list(range(max(start, since), end))
        last_start = start


TURNS = """async ({ Session }, script) => {
  const sockets = [];
  const told = [];
  class Socket {
    constructor() {
      this.sent = [];
      this.bufferedAmount = 0;
      sockets.push(this);
    }
    send(data) {
      this.sent.push(typeof data === "string" ? JSON.parse(data) : [...data]);
    }
    close() {}
  }
  window.WebSocket = Socket;
  const handlers = Object.fromEntries(
    ["state", "partial", "final", "alternatives", "warning", "broken", "lost"].map(
      (name) => [name, (...values) => told.push(structuredClone([name, ...values]))]),
  );
  const start = { sample_rate: 10, encoding: "float32" };
  const session = new Session("", start, { ...handlers, heard() {} });
  const wait = (done) => new Promise((resolve) => {
    const look = () => (done() ? resolve() : setTimeout(look, 20));
    look();
  });
  for (const [what, value] of script) {
    const socket = sockets.at(-1);
    if (what === "open") socket.onopen();
    if (what === "event") socket.onmessage({ data: JSON.stringify(value) });
    if (what === "push") session.push(Float32Array.from(value));
    if (what === "finish") session.finish();
    if (what === "break") socket.onclose();
    if (what === "again") await wait(() => sockets.length >= value);
  }
  return { sent: sockets.map((socket) => socket.sent), told };
}"""
READY = {"event": "ready"}


def word(text, start, end):
    return {"text": text, "start": start, "end": end}


def final(words, start, end, reason="pause"):
    event = {"event": "final", "words": words, "start": start, "end": end, "reason": reason}
    event["segment"] = 0
    return ["event", event]


def turns(page, *script):
    found = run(page, "session.js", TURNS, list(script))
    return found["sent"], found["told"]


def test_what_no_final_segment_covers_is_sent_again(page):
    sent, told = turns(
        page,
        ["open", None],
        ["event", READY],
        ["push", list(range(20))],
        final([word("ONE", 0.2, 0.6)], 0.0, 1.0),  # the middle of the pause is 0.8 s
        ["push", [20, 21]],
        ["break", None],
        ["push", [22]],
        ["again", 2],
        ["open", None],
        ["event", READY],
        ["push", [23]],
        [
            "event",
            {
                "event": "partial",
                "committed": [],
                "tentative": [word("TWO", 0.1, 0.4)],
                "seconds": 0.5,
                "decoded_seconds": 0.4,
            },
        ],
        ["finish", None],
        final([word("TWO", 0.1, 0.4)], 0.0, 1.6, "end"),
        ["event", {"event": "end"}],
    )
    start = {"command": "start", "sample_rate": 10, "encoding": "float32"}
    assert sent[0] == [start, list(range(20)), [20, 21]]
    assert sent[1][0] == start and sent[1][-1] == {"command": "end"}
    assert sum(sent[1][1:-1], []) == list(range(8, 24)), "from 0.8 s on"
    finals = [values[0] for name, *values in told if name == "final"]
    assert [each["start"] for each in finals] == [0.0, 0.8]
    assert finals[1]["words"][0]["start"] == pytest.approx(0.9), "times go on"
    states = [values[0] for name, *values in told if name == "state"]
    assert states == ["connecting", "live", "waiting", "live", "finishing", "ended"]


def partial(committed, tentative):
    event = {"event": "partial", "committed": committed, "tentative": tentative}
    return ["event", {**event, "seconds": 2.0, "decoded_seconds": 1.0}]


def test_committed_words_are_told_once_and_alternatives_later(page):
    one, two, three = (word(text, at, at + 0.1) for text, at in (("1", 0), ("2", 0.3), ("3", 0.6)))
    _, told = turns(
        page,
        ["open", None],
        ["event", READY],
        ["push", list(range(20))],
        partial([one], [two]),
        partial([], [two]),
        partial([two, three], []),
        final([one, two, three], 0.0, 1.0),
        partial([], [three]),
        ["event", {"event": "alternatives", "segment": 0, "alternatives": [{"text": "1 2 4"}]}],
    )
    shown = [values[0] for name, *values in told if name == "partial"]
    words = [[len(each["committed"]), len(each["tentative"])] for each in shown]
    assert words == [[1, 1], [1, 1], [3, 0], [0, 1]]
    (closed,) = [values[0] for name, *values in told if name == "final"]
    (later,) = [values for name, *values in told if name == "alternatives"]
    assert later == [closed["key"], [{"text": "1 2 4"}]]


def test_the_end_of_a_server_is_not_the_end(page):
    _, told = turns(
        page,
        ["open", None],
        ["event", READY],
        ["push", list(range(20))],
        ["finish", None],
        ["event", {"event": "error", "code": "shutdown", "message": "", "is_fatal": True}],
        final([word("ON", 0.2, 0.6)], 0.0, 1.0, "end"),
        ["event", {"event": "end"}],
        ["break", None],
        ["again", 2],
        ["open", None],
        ["event", READY],
        final([word("ONE", 0.2, 0.6)], 0.0, 2.0, "end"),
        ["event", {"event": "end"}],
    )
    assert [values[0]["words"][0]["text"] for name, *values in told if name == "final"] == ["ONE"]
    assert told[-1][:2] == ["state", "ended"]


@pytest.mark.parametrize("code", ["unauthorized", "origin", "full", "bad_request"])
def test_a_refusal_is_told_at_once(page, code):
    error = {"event": "error", "code": code, "message": "no", "is_fatal": True}
    _, told = turns(page, ["open", None], ["event", error], ["break", None])
    assert told[-1] == ["state", "failed", {"code": code, "message": "no"}]


def test_a_stream_that_fails_again_and_again_ends(page):
    error = {"event": "error", "code": "internal", "message": "no", "is_fatal": True}
    once = [["open", None], ["event", READY], ["event", error], ["break", None]]
    _, told = turns(page, *once, ["again", 2], *once, ["again", 3], *once)
    assert told[-1] == ["state", "failed", {"code": "internal", "message": "no"}]


def test_sound_that_is_lost_is_told(page):
    _, told = turns(
        page,
        ["push", [0.0] * 100],
        ["push", [0.0] * 1150],  # 120 s are kept
        ["open", None],
        ["event", READY],
    )
    assert ["lost", 10.0] in told

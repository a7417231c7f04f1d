"""Files by streams: as each alone, in order, and never held whole."""

import numpy as np
import pytest
import soundfile
import torch

from midge.decoding.endpointing import EndpointConfig
from midge.decoding.files import stream_files, transcribe_files
from midge.decoding.live import decode_offline
from midge.decoding.streams import Stream, StreamingDecoder
from recognizers import RATE, noise, tiny_recognizer, write_nan

torch.set_num_threads(1)
QUICK = EndpointConfig(pause=0.12, silence=0.4, max_segment=1.0)
DECODER = StreamingDecoder(tiny_recognizer())


@pytest.fixture
def paths(tmp_path):
    """Four recordings of different lengths and rates."""
    found = []
    for number, (seconds, rate) in enumerate([(2.6, RATE), (0.3, RATE), (0.0, RATE), (1.2, 16000)]):
        found.append(tmp_path / f"u{number}.wav")
        soundfile.write(found[-1], noise(seconds * rate / RATE, seed=number), rate)
    return found


@pytest.mark.parametrize("num_streams", [1, 2, 9])
@pytest.mark.parametrize("endpointing", [None, QUICK], ids=["whole", "cut"])
def test_each_file_is_as_a_stream_of_its_own(paths, num_streams, endpointing):
    done: list[float] = []
    found = list(
        stream_files(
            DECODER,
            paths,
            num_streams=num_streams,
            progress=done.append,
            endpointing=endpointing,
            blank_penalty=1.0,
        )
    )
    assert [path for path, _ in found] == paths
    for path, transcript in found:
        samples, rate = soundfile.read(path, dtype="float32")
        alone = decode_offline(DECODER, samples, rate, endpointing=endpointing, blank_penalty=1.0)
        assert (transcript.text, transcript.words) == (alone.text, alone.words)
        assert transcript.seconds == pytest.approx(len(samples) / rate)
    assert sum(done) == pytest.approx(4.1)
    assert found[0][1].text


def test_what_cannot_be_read_does_not_stop_the_others(paths, tmp_path):
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF")
    write_nan(tmp_path / "nan.wav")
    order = [tmp_path / "nowhere.wav", paths[0], broken, tmp_path / "nan.wav", paths[1]]
    for found in (
        list(stream_files(DECODER, order, num_streams=2)),
        list(transcribe_files(DECODER.recognizer, order, max_seconds=1.0)),
    ):
        assert [path for path, _ in found] == order
        kinds = [type(result) for _, result in found]
        assert issubclass(kinds[0], OSError)
        assert issubclass(kinds[2], ValueError) and issubclass(kinds[3], ValueError)
        assert found[1][1].text and found[4][1].seconds == pytest.approx(0.3)
        assert "nan.wav has samples that are not finite numbers" in str(found[3][1])


def test_no_file_is_held_whole(tmp_path, monkeypatch):
    """Whatever the length, a block at a time is read, and features do not pile up."""
    sizes: list[int] = []
    plain = Stream.feed

    def watched(self, samples):
        sizes.append(len(samples))
        plain(self, samples)
        assert len(self._inputs) <= 60, "more than a second of features waits"

    monkeypatch.setattr(Stream, "feed", watched)
    paths = [tmp_path / f"{number}.wav" for number in range(3)]
    for number, path in enumerate(paths):
        soundfile.write(path, np.tile(noise(1.0, seed=number), 20 if number == 0 else 1), RATE)
    found = dict(stream_files(DECODER, paths, num_streams=2, endpointing=QUICK))
    assert found[paths[0]].seconds == 20.0 and max(sizes) == RATE


def test_no_file_is_no_result():
    assert list(stream_files(DECODER, [])) == []

"""Reading audio files: formats, parts, blocks, channels, and every way a file can be broken."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from midge.audio import AudioError, audio_blocks, audio_info, read_audio

RATE = 8000


def tone(num_samples: int, frequency: float = 440.0, rate: int = RATE) -> np.ndarray:
    time = np.arange(num_samples) / rate
    return (0.5 * np.sin(2 * np.pi * frequency * time)).astype(np.float32)


def written(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    soundfile.write(path, samples, rate)
    return path


@pytest.mark.parametrize(
    "name, tolerance", [("a.wav", 2**-15), ("a.flac", 2**-15), ("a.ogg", 0.1), ("a.mp3", 0.1)]
)
def test_formats(tmp_path, name, tolerance):
    samples = tone(2 * RATE)
    audio = read_audio(written(tmp_path / name, samples))
    assert audio.sample_rate == RATE
    assert audio.samples.dtype == np.float32
    assert audio.duration == 2.0
    np.testing.assert_allclose(audio.samples, samples, atol=tolerance)


def test_info_is_the_header(tmp_path):
    path = written(tmp_path / "a.wav", np.zeros((1200, 2), np.float32))
    info = audio_info(path)
    assert (info.sample_rate, info.num_channels, info.num_samples) == (RATE, 2, 1200)
    assert info.duration == 0.15


def test_a_part_is_that_part(tmp_path):
    samples = tone(RATE)
    path = written(tmp_path / "a.flac", samples)
    whole = read_audio(path).samples
    part = read_audio(path, start=0.25, duration=0.5).samples
    np.testing.assert_array_equal(part, whole[2000:6000])
    np.testing.assert_array_equal(read_audio(path, start=0.75).samples, whole[6000:])
    assert not len(read_audio(path, start=1.0).samples)


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 3000), st.integers(1, 1000))
def test_blocks_joined_are_the_file(tmp_path, num_samples, block_size):
    path = written(tmp_path / "a.wav", tone(num_samples))
    blocks = list(audio_blocks(path, block_size / RATE))
    assert all(len(block.samples) == block_size for block in blocks[:-1])
    joined = np.concatenate([block.samples for block in blocks])
    np.testing.assert_array_equal(joined, read_audio(path).samples)
    assert len(joined) == num_samples


def test_stereo_is_mixed_with_one_notice(tmp_path, caplog):
    left, right = tone(RATE), tone(RATE, 660.0)
    path = written(tmp_path / "stereo.wav", np.stack((left, right), 1))
    with caplog.at_level(logging.WARNING):
        mixed = read_audio(path).samples
        read_audio(path)
    np.testing.assert_allclose(mixed, (left + right) / 2, atol=2**-14)
    (record,) = caplog.records
    assert "stereo.wav has 2 channels" in record.getMessage()


def test_one_channel_is_chosen_without_notice(tmp_path, caplog):
    left, right = tone(RATE), tone(RATE, 660.0)
    path = written(tmp_path / "a.wav", np.stack((left, right), 1))
    with caplog.at_level(logging.WARNING):
        np.testing.assert_allclose(read_audio(path, channel=1).samples, right, atol=2**-15)
    assert not caplog.records
    with pytest.raises(AudioError, match=r"a\.wav has 2 channels.*no 2"):
        read_audio(path, channel=2)


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3"])
def test_a_file_that_is_cut_off_is_an_error(tmp_path, suffix, capfd):
    whole = written(tmp_path / f"whole.{suffix}", np.random.default_rng(0).normal(0, 0.1, RATE))
    content = whole.read_bytes()
    cut = tmp_path / f"cut.{suffix}"
    cut.write_bytes(content[: len(content) // 2])
    with pytest.raises(AudioError, match=rf"cut\.{suffix}"):
        read_audio(cut)
    capfd.readouterr()  # mpg123 writes its own complaint


def test_a_wav_from_a_pipe_has_no_length_and_is_read(tmp_path):
    content = bytearray(written(tmp_path / "a.wav", tone(RATE)).read_bytes())
    place = content.index(b"data") + 4
    content[place : place + 4] = b"\xff\xff\xff\xff"
    piped = tmp_path / "piped.wav"
    piped.write_bytes(content)
    assert len(read_audio(piped).samples) == RATE


def test_a_flac_from_a_pipe_has_no_length_and_is_refused(tmp_path):
    content = bytearray(written(tmp_path / "a.flac", tone(RATE)).read_bytes())
    # 36 bits of STREAMINFO, up to byte 25, are the number of samples.
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    piped = tmp_path / "piped.flac"
    piped.write_bytes(content)
    with pytest.raises(AudioError, match=r"piped\.flac does not say how long it is; convert it"):
        audio_info(piped)


@pytest.mark.parametrize(
    "name, content", [("empty.wav", b""), ("text.flac", b"not a sound"), ("bare.raw", b"1234")]
)
def test_what_is_no_audio_is_an_error_with_its_name(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AudioError, match=name):
        read_audio(tmp_path / name)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_finite_numbers_are_an_error(tmp_path, value):
    samples = np.stack((tone(RATE), tone(RATE)), 1)
    samples[RATE // 2] = value, -value
    path = tmp_path / "strange.wav"
    for recorded in (samples, samples[:, 0]):
        soundfile.write(path, recorded, RATE, subtype="FLOAT")
        with pytest.raises(AudioError, match=r"strange\.wav has samples that are not finite"):
            read_audio(path)
    assert len(read_audio(path, duration=0.25).samples) == RATE // 4  # what is read of it is fine
    samples[:, 0] = 0.0
    soundfile.write(path, samples, RATE, subtype="FLOAT")
    assert not read_audio(path, channel=0).samples.any()


def test_a_missing_file_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.wav"):
        read_audio(tmp_path / "none.wav")
    with pytest.raises(IsADirectoryError):
        read_audio(tmp_path)


def test_a_part_beyond_the_end_is_an_error(tmp_path):
    path = written(tmp_path / "a.wav", tone(RATE))
    with pytest.raises(AudioError, match="1.000 s long, it has nothing at 1.500 s"):
        read_audio(path, start=1.5)
    with pytest.raises(AudioError, match="only 0.500 s are there"):
        read_audio(path, start=0.5, duration=0.6)


def test_a_rounded_duration_is_no_error(tmp_path):
    path = written(tmp_path / "a.wav", tone(RATE - 20))
    assert len(read_audio(path, duration=1.0).samples) == RATE - 20


@pytest.mark.parametrize(
    "arguments, message",
    [({"start": -1.0}, "start"), ({"duration": -1.0}, "duration"), ({"start": np.nan}, "start")],
)
def test_wrong_arguments(tmp_path, arguments, message):
    path = written(tmp_path / "a.wav", tone(10))
    with pytest.raises(ValueError, match=f"{message} should be"):
        read_audio(path, **arguments)
    with pytest.raises(ValueError, match="block_seconds should be"):
        list(audio_blocks(path, 0.0))

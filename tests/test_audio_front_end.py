"""The front end: an independent log-mel oracle, streams, counts, times, causality, silence."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.audio import FrontEnd, FrontEndConfig, resample
from midge.configuration import from_table, to_table

RATES = (8000, 11025, 16000, 44100, 48000)
CONFIGS = (
    FrontEndConfig(),
    FrontEndConfig(stacking=4, stride=2),
    FrontEndConfig(stacking=1, stride=1, tail_padding=0.0),
    FrontEndConfig(sample_rate=8000, num_mels=40, window=0.032, shift=0.016, tail_padding=0.1),
    FrontEndConfig(sample_rate=22050, shift=0.02, window=0.04),
)


def noise(num_samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, num_samples).astype(np.float32)


def fitted(config: FrontEndConfig) -> FrontEnd:
    front_end = FrontEnd(config)
    front_end.fit([front_end.mels(noise(8000), 16000)])
    return front_end


def log_mels(config: FrontEndConfig, samples: np.ndarray) -> np.ndarray:
    """[num_mel_frames, num_mels] as Kaldi's manual defines them, in float64, a frame at a time."""
    window_size, shift = config.window_size, config.shift_size
    lead = np.zeros(window_size - shift)
    num_heard = len(samples) + config.tail_size
    tail = np.zeros(config.tail_size + -num_heard % config.frame_size)
    padded = np.concatenate((lead, samples.astype(np.float64) * 32768, tail))
    fft_size = 1 << (window_size - 1).bit_length()
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window_size) / (window_size - 1))
    rows = []
    for start in range(0, len(padded) - window_size + 1, shift):
        frame = padded[start : start + window_size]
        frame = frame - frame.mean()
        frame = frame - 0.97 * np.concatenate((frame[:1], frame[:-1]))
        power = np.abs(np.fft.rfft(frame * hann**0.85, fft_size)) ** 2
        rows.append(triangles(config, fft_size) @ power)
    return np.maximum(np.log(np.maximum(rows, 1e-10)), config.floor)


def triangles(config: FrontEndConfig, fft_size: int) -> np.ndarray:
    """[num_mels, fft_size / 2 + 1] weights of the bands, triangles on the mel scale."""

    def mel(frequency: np.ndarray | float) -> np.ndarray:
        return 1127 * np.log1p(np.asarray(frequency) / 700)

    edges = np.linspace(mel(config.low_frequency), mel(config.upper_edge), config.num_mels + 2)
    bins = mel(np.arange(fft_size // 2 + 1) * config.sample_rate / fft_size)
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
    weights = np.maximum(np.minimum(rising, falling), 0)
    weights[:, -1] = 0  # Kaldi leaves out the bin at half the sample rate
    return weights


@pytest.mark.parametrize("config", CONFIGS)
def test_mels_are_kaldis(config):
    samples = noise(config.sample_rate // 4)
    mels = FrontEnd(config).mels(samples, config.sample_rate)
    assert mels.dtype == torch.float32
    np.testing.assert_allclose(mels, log_mels(config, samples), atol=2e-3)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 4000), st.sampled_from(RATES), st.sampled_from(CONFIGS))
def test_the_number_of_frames_is_known(num_samples, rate, config):
    front_end = FrontEnd(config)
    features = front_end.features(noise(num_samples), rate)
    assert features.shape == (front_end.num_frames(num_samples, rate), front_end.feature_size)


@settings(deadline=None, max_examples=100)
@given(
    st.integers(0, 4000),
    st.sampled_from(RATES),
    st.sampled_from(CONFIGS),
    st.lists(st.integers(0, 4000), max_size=10),
)
def test_a_stream_equals_the_whole_to_the_bit(num_samples, rate, config, cuts):
    front_end = fitted(config)
    samples = noise(num_samples)
    stream = front_end.stream(rate)
    pieces = [stream.accept(piece) for piece in np.split(samples, sorted(cuts))]
    assert torch.equal(torch.cat((*pieces, stream.finish())), front_end.features(samples, rate))


@pytest.mark.parametrize("rate", [16000, 44100])
def test_messages_of_one_sample(rate):
    front_end = fitted(FrontEndConfig(stacking=5, stride=3))
    samples = noise(2000)
    stream = front_end.stream(rate)
    pieces = [stream.accept(samples[i : i + 1]) for i in range(len(samples))]
    assert torch.equal(torch.cat((*pieces, stream.finish())), front_end.features(samples, rate))


def test_a_long_sound_is_worked_on_in_blocks_and_equals_one_stream():
    front_end = FrontEnd(FrontEndConfig())
    samples = noise(400_000)  # more than two blocks
    stream = front_end.stream(16000)
    joined = torch.cat((stream.accept(samples), stream.finish()))
    assert torch.equal(joined, front_end.features(samples, 16000))


@pytest.mark.parametrize("config", CONFIGS[:3])
def test_a_frame_hears_up_to_its_time_and_no_further(config):
    front_end = FrontEnd(config)
    rate = config.sample_rate
    samples = noise(rate // 2)
    features = front_end.features(samples, rate)
    for frame in range(len(features) - 1):
        end = round(front_end.frame_time(frame) * rate)
        if end + 10 > len(samples):
            break
        changed = samples.copy()
        changed[end:] = noise(len(samples) - end, seed=1)
        changed_features = front_end.features(changed, rate)
        assert torch.equal(changed_features[: frame + 1], features[: frame + 1])
        assert not torch.equal(changed_features[frame + 1], features[frame + 1])


def test_a_stream_gives_a_frame_as_soon_as_its_time_has_come():
    front_end = FrontEnd(FrontEndConfig())
    stream = front_end.stream(16000)
    assert len(stream.accept(noise(479))) == 0
    assert len(stream.accept(noise(1))) == 1
    assert front_end.frame_time(0) == 480 / 16000


@pytest.mark.parametrize("place", [0, 7, 1000, -20, -8, -1])
@pytest.mark.parametrize("config", CONFIGS[:3])
def test_every_sample_is_heard(config, place):
    samples = np.zeros(2003, np.float32)
    front_end = FrontEnd(config)
    silent = front_end.features(samples, 16000)
    samples[place] = 1.0
    # Without tail padding the window is nearly closed over the very last samples.
    assert (front_end.features(samples, 16000) - silent).abs().max() > 0.1


def test_stacking_is_of_the_past_oldest_first():
    config = FrontEndConfig(num_mels=2, stacking=3, stride=2)
    front_end = FrontEnd(config)
    mels = torch.arange(8.0).reshape(4, 2)  # mel frame i is (2i, 2i + 1)
    expected = [[0, 0, 0, 1, 2, 3], [2, 3, 4, 5, 6, 7]]  # before the sound: the mean, 0
    assert front_end.stack(mels).tolist() == expected
    batch = front_end.stack(mels.expand(2, 3, 4, 2))
    assert batch.shape == (2, 3, 2, 6)
    assert batch[1, 2].tolist() == expected


def test_what_augments_sees_normalized_frames():
    front_end = fitted(FrontEndConfig())
    mels = front_end.mels(noise(8000), 16000)
    seen = []

    def masked(normalized: torch.Tensor) -> torch.Tensor:
        seen.append(normalized)
        return torch.zeros_like(normalized)

    assert not front_end.stack(mels, masked).any()
    assert torch.equal(seen[0], front_end.normalize(mels))


def test_fit_gives_mean_0_and_deviation_1():
    front_end = FrontEnd(FrontEndConfig())
    loud, quiet = noise(16000), 0.001 * noise(16000, seed=1)
    mels = [front_end.mels(samples, 16000) for samples in (loud, quiet)]
    front_end.fit(iter(mels))
    normalized = front_end.normalize(torch.cat(mels)).double()
    np.testing.assert_allclose(normalized.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(normalized.std(0, correction=0), 1, atol=1e-4)
    assert set(front_end.state_dict()) == {"mean", "scale"}


def test_a_band_that_never_varies_is_not_blown_up():
    front_end = FrontEnd(FrontEndConfig())
    front_end.fit([torch.full((10, 80), 5.0)])
    assert front_end.normalize(torch.full((1, 80), 7.0)).allclose(torch.full((1, 80), 2.0))


def test_fit_needs_frames():
    with pytest.raises(ValueError, match="at least one frame"):
        FrontEnd(FrontEndConfig()).fit([])


def test_silence_is_at_the_floor_and_no_outlier():
    front_end = FrontEnd(FrontEndConfig())
    rounding = (np.random.default_rng(0).uniform(-0.5, 0.5, 16000) / 32768).astype(np.float32)
    quiet = front_end.mels(rounding, 16000)[:90]  # what 16 bits add to any recording
    silent = front_end.mels(np.zeros(16000, np.float32), 16000)
    assert (silent == front_end.config.floor).all()
    assert (quiet - front_end.config.floor).abs().max() < 6
    telephone = front_end.mels(resample(noise(8000), 8000, 16000), 16000)
    assert (telephone[10:-40, -1] == front_end.config.floor).all()  # empty above 4 kHz
    assert (telephone[10:-40, 20] > 10).all()


def test_an_empty_sound_has_the_frames_of_its_tail():
    front_end = FrontEnd(FrontEndConfig())
    assert len(front_end.features(np.zeros(0, np.float32), 44100)) == 10
    bare = FrontEnd(FrontEndConfig(tail_padding=0.0))
    assert bare.features(np.zeros(0, np.float32), 16000).shape == (0, 240)


def test_the_sound_is_not_changed():
    samples = noise(1000)
    before = samples.copy()
    FrontEnd(FrontEndConfig()).features(samples, 16000)
    np.testing.assert_array_equal(samples, before)


def test_a_stream_holds_no_past():
    front_end = FrontEnd(FrontEndConfig(stacking=5, stride=3))
    stream = front_end.stream(16000)
    for _ in range(20):
        stream.accept(noise(16000))
    assert len(stream._pending) < 5
    assert stream._pending.base is None


def test_a_finished_stream_takes_nothing():
    stream = FrontEnd(FrontEndConfig()).stream(16000)
    stream.finish()
    with pytest.raises(ValueError, match="finished"):
        stream.accept(noise(10))
    with pytest.raises(ValueError, match="finished"):
        stream.finish()


def test_wrong_input_is_named():
    front_end = FrontEnd(FrontEndConfig())
    with pytest.raises(ValueError, match="sample_rate should be"):
        front_end.features(noise(10), 0)
    with pytest.raises(ValueError, match="finite"):
        front_end.features(np.array([math.nan]), 16000)
    with pytest.raises(ValueError, match="multiple of 3 frames"):
        front_end.stack(torch.zeros(4, 80))
    with pytest.raises(ValueError, match=r"\[\*batch, num_mel_frames, 80\], got shape \[3, 40\]"):
        front_end.stack(torch.zeros(3, 40))
    with pytest.raises(ValueError, match="num_samples should be at least 0"):
        front_end.num_frames(-1, 16000)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"sample_rate": 0}, "sample_rate should be"),
        ({"num_mels": 0}, "num_mels should be"),
        ({"stacking": 2}, "stacking should be at least the stride of 3"),
        ({"window": 0.005}, "window should be at least the shift"),
        ({"window": 0.0250001}, "window should be a whole number of samples"),
        ({"shift": 0.0}, "shift should be a whole number of samples"),
        ({"tail_padding": -0.1}, "tail_padding should be"),
        ({"high_frequency": 9000.0}, "high_frequency should be"),
        ({"low_frequency": 8000.0}, "high_frequency should be"),
        ({"floor": math.nan}, "floor should be"),
    ],
)
def test_wrong_configurations(values, message):
    with pytest.raises(ValueError, match=message):
        FrontEndConfig(**values)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_configuration_survives_its_table(config):
    assert from_table(FrontEndConfig, to_table(config)) == config
    assert dataclasses.replace(config) == config

"""Resampling: pieces equal the whole to the bit, lengths are known, tones stay tones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.audio import Resampler, num_resampled, resample
from midge.audio.resampling import as_samples

RATES = (8000, 11025, 16000, 22050, 32000, 44100, 48000)
rates = st.sampled_from(RATES)


def noise(num_samples: int) -> np.ndarray:
    return np.random.default_rng(num_samples).normal(0, 0.1, num_samples).astype(np.float32)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 5000), rates, rates, st.lists(st.integers(0, 5000), max_size=8))
def test_pieces_joined_are_the_whole(num_samples, from_rate, to_rate, cuts):
    samples = noise(num_samples)
    resampler = Resampler(from_rate, to_rate)
    pieces = [resampler.accept(piece) for piece in np.split(samples, sorted(cuts))]
    joined = np.concatenate((*pieces, resampler.finish()))
    np.testing.assert_array_equal(joined, resample(samples, from_rate, to_rate))


def test_single_samples_joined_are_the_whole():
    samples = noise(3000)
    resampler = Resampler(44100, 16000)
    pieces = [resampler.accept(samples[i : i + 1]) for i in range(len(samples))]
    joined = np.concatenate((*pieces, resampler.finish()))
    np.testing.assert_array_equal(joined, resample(samples, 44100, 16000))


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 200_000), rates, rates)
def test_the_number_of_samples_is_known(num_samples, from_rate, to_rate):
    resampled = resample(np.zeros(num_samples, np.float32), from_rate, to_rate)
    assert len(resampled) == num_resampled(num_samples, from_rate, to_rate)
    assert resampled.dtype == np.float32


@pytest.mark.parametrize("from_rate", RATES)
def test_a_tone_stays_where_it_is(from_rate):
    def tone(rate: int) -> np.ndarray:
        return np.sin(2 * np.pi * 1000 * np.arange(rate) / rate).astype(np.float32)

    resampled = resample(tone(from_rate), from_rate, 16000)
    inner = slice(1000, -1000)  # the filter rings at both ends
    np.testing.assert_allclose(resampled[inner], tone(16000)[inner], atol=1e-4)


def test_what_the_lower_rate_cannot_hold_is_gone():
    tone = np.sin(2 * np.pi * 6000 * np.arange(16000) / 16000).astype(np.float32)
    assert np.abs(resample(tone, 16000, 8000)[1000:-1000]).max() < 1e-4


def test_a_finished_resampler_takes_nothing():
    resampler = Resampler(8000, 16000)
    resampler.finish()
    with pytest.raises(ValueError, match="finished"):
        resampler.accept(noise(10))


@pytest.mark.parametrize("rate", [0, -8000, 16000.0, True, "16000"])
def test_wrong_rates(rate):
    with pytest.raises(ValueError, match="to_rate should be a positive whole number"):
        Resampler(8000, rate)


@pytest.mark.parametrize(
    "samples, message",
    [
        (np.zeros(10, np.int16), "divide 16-bit samples by 32768"),
        (np.zeros((10, 2), np.float32), r"one channel .* got shape \(10, 2\)"),
        (np.array([0.0, np.nan]), "finite"),
        (np.array([0.0, np.inf]), "finite"),
    ],
)
def test_wrong_samples(samples, message):
    with pytest.raises(ValueError, match=message):
        as_samples(samples)


def test_float64_is_taken():
    assert as_samples(np.zeros(3)).dtype == np.float32

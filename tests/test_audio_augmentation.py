"""Augmentation: draws that depend on seed, epoch and utterance alone; what each change does."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.audio import Augmentation, AugmentationConfig, end_of_speech
from midge.audio.channels import coloured, reverberated
from midge.configuration import from_table, to_table

RATE = 16000
OFF = {
    "num_frequency_masks": 0,
    "num_time_masks": 0,
    "speeds": (1.0,),
    "silence_cut_probability": 0.0,
}
EVERYTHING = AugmentationConfig(
    silence_cut_probability=0.7,
    max_added_silence=0.5,
    narrow_band_probability=0.3,
    volume=(-6.0, 6.0),
    noise_probability=0.5,
    noise="white",
    reverberation_probability=0.5,
    equalizer=6.0,
)


def tone(num_samples: int, frequency: float = 440.0) -> np.ndarray:
    return np.sin(2 * np.pi * frequency * np.arange(num_samples) / RATE).astype(np.float32)


def changed(config: AugmentationConfig, samples: np.ndarray, name: str, epoch: int = 0):
    return Augmentation(config, seed=1).waveform(samples, RATE, epoch=epoch, utterance_id=name)


def masked(config: AugmentationConfig, num_mel_frames: int, name: str, epoch: int = 0):
    """[num_mel_frames, num_mels] whether a value is masked."""
    augmentation = Augmentation(config, seed=1)
    return augmentation.mels(torch.ones(num_mel_frames, 80), epoch=epoch, utterance_id=name) == 0


def longest_run(is_masked: torch.Tensor) -> int:
    """The longest run of True in a vector."""
    text = "".join("x" if value else " " for value in is_masked.tolist())
    return max(map(len, text.split()), default=0)


def power(samples: np.ndarray) -> float:
    return float(np.square(samples, dtype=np.float64).mean())


def test_draws_do_not_depend_on_order_or_object():
    samples, mels = tone(8000), torch.randn(100, 80)
    names = [f"utterance-{i}" for i in range(6)]

    def run(augmentation: Augmentation, order: list[str]):
        results = {}
        for name in order:
            waveform = augmentation.waveform(samples, RATE, epoch=3, utterance_id=name)
            results[name] = waveform, augmentation.mels(mels, epoch=3, utterance_id=name)
        return results

    first = run(Augmentation(EVERYTHING, seed=1), names)
    second = run(Augmentation(EVERYTHING, seed=1), names[::-1])
    for name in names:
        np.testing.assert_array_equal(first[name][0], second[name][0])
        assert torch.equal(first[name][1], second[name][1])
    assert len({waveform.tobytes() for waveform, _ in first.values()}) == len(names)


@pytest.mark.slow
def test_draws_are_the_same_in_another_process():
    program = (
        "import hashlib, numpy as np\n"
        "from midge.audio import Augmentation, AugmentationConfig\n"
        "samples = np.ones(4000, np.float32)\n"
        "augmentation = Augmentation(AugmentationConfig(noise_probability=1.0), seed=1)\n"
        "waveform = augmentation.waveform(samples, 16000, epoch=2, utterance_id='a')\n"
        "digest = hashlib.sha256(waveform).hexdigest()"
    )
    here: dict[str, object] = {}
    exec(program, here)
    there = subprocess.run(
        [sys.executable, "-c", f"{program}\nprint(digest)"],
        env={**os.environ, "PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here["digest"]


@pytest.mark.parametrize("other", [{"seed": 2}, {"epoch": 1}, {"utterance_id": "b"}])
def test_seed_epoch_and_utterance_each_matter(other):
    same = {"seed": 1, "epoch": 0, "utterance_id": "a"}
    mels, samples = torch.ones(400, 80), tone(4000)

    def run(seed: int, epoch: int, utterance_id: str):
        augmentation = Augmentation(EVERYTHING, seed)
        key = {"epoch": epoch, "utterance_id": utterance_id}
        return augmentation.mels(mels, **key), augmentation.waveform(samples, RATE, **key)

    (mels_1, samples_1), (mels_2, samples_2) = run(**same), run(**{**same, **other})
    assert not torch.equal(mels_1, mels_2)
    assert not np.array_equal(samples_1, samples_2)


def test_everything_can_be_turned_off():
    config = AugmentationConfig(**OFF)
    samples, mels = tone(4000), torch.randn(50, 80)
    np.testing.assert_array_equal(changed(config, samples, "a"), samples)
    assert torch.equal(Augmentation(config, 1).mels(mels, epoch=0, utterance_id="a"), mels)


def test_input_is_not_changed():
    samples, mels = tone(4000), torch.ones(200, 80)
    changed(EVERYTHING, samples, "a")
    Augmentation(EVERYTHING, 1).mels(mels, epoch=0, utterance_id="a")
    np.testing.assert_array_equal(samples, tone(4000))
    assert (mels == 1).all()


def test_frequency_masks_have_the_conformers_statistics():
    config = AugmentationConfig(num_time_masks=0)
    widths, bands = [], torch.zeros(80)
    for i in range(1500):
        one_mask = AugmentationConfig(num_time_masks=0, num_frequency_masks=1)
        is_masked = masked(one_mask, 10, str(i))
        assert (is_masked == is_masked[0]).all()  # all of time
        widths.append(int(is_masked[0].sum()))
        assert longest_run(is_masked[0]) == widths[-1]  # one piece
        bands += is_masked[0]
    counts = np.bincount(widths, minlength=28)
    assert len(counts) == 28  # 0..27
    assert counts.min() > 1500 / 28 / 2 and counts.max() < 1500 / 28 * 2
    assert abs(np.mean(widths) - 13.5) < 1
    assert bands.min() > 0
    two = [int(masked(config, 10, str(i))[0].sum()) for i in range(300)]
    assert max(two) > 27  # two masks that do not overlap


def test_time_masks_have_the_conformers_statistics():
    config = AugmentationConfig(num_frequency_masks=0)
    one = AugmentationConfig(num_frequency_masks=0, num_time_masks=1)
    lengths = []
    for i in range(1000):
        is_masked = masked(one, 219, str(i))[:, 0]
        lengths.append(longest_run(is_masked))
        assert lengths[-1] == is_masked.sum()
    assert sorted(set(lengths)) == list(range(11))  # 0..floor(0.05 * 219)
    assert abs(np.mean(lengths) - 5) < 0.4
    shares = [masked(config, 1000, str(i))[:, 0].double().mean().item() for i in range(200)]
    # Ten masks of mean share 0.025, placed independently: 1 - (1 - 0.025) ** 10 = 0.224
    assert abs(np.mean(shares) - 0.224) < 0.02
    assert max(shares) <= 0.5
    assert not masked(config, 19, "a").any()  # too short for any mask


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 60), st.integers(1, 60))
def test_masks_fit_any_size(num_mel_frames, num_mels):
    config = AugmentationConfig(max_time_mask=1.0)
    mels = torch.ones(num_mel_frames, num_mels)
    assert Augmentation(config, 1).mels(mels, epoch=0, utterance_id="a").shape == mels.shape


@pytest.mark.parametrize("speed", [0.9, 1.1])
def test_speed_changes_tempo_and_pitch(speed):
    faster = changed(AugmentationConfig(**{**OFF, "speeds": (speed,)}), tone(RATE), "a")
    assert len(faster) == round(RATE / speed)
    inner = slice(1000, 13000)
    np.testing.assert_allclose(faster[inner], tone(RATE, 440.0 * speed)[inner], atol=1e-3)


def test_speeds_are_drawn_alike():
    config = AugmentationConfig(**{**OFF, "speeds": (0.9, 1.0, 1.1)})
    lengths = [len(changed(config, tone(990), str(i))) for i in range(600)]
    values, counts = np.unique(lengths, return_counts=True)
    assert values.tolist() == [900, 990, 1100]
    assert counts.min() > 150
    assert config.fastest_speed == Augmentation(config, 1).fastest_speed == 1.1


def test_trailing_silence_is_cut_at_random_and_speech_never():
    speech = tone(RATE // 2)
    samples = np.concatenate((speech, np.zeros(RATE, np.float32)))
    config = AugmentationConfig(**{**OFF, "silence_cut_probability": 0.5})
    lengths = np.array([len(changed(config, samples, str(i))) for i in range(400)])
    is_cut = lengths < len(samples)
    assert 0.4 < is_cut.mean() < 0.6
    assert lengths.min() >= len(speech) + 0.05 * RATE
    # The share that is cut is uniform: so is what is left of 0.95 s.
    left = (lengths[is_cut] - len(speech) - 0.05 * RATE) / (0.95 * RATE)
    assert left.min() < 0.1 and left.max() > 0.9 and abs(left.mean() - 0.5) < 0.08
    np.testing.assert_array_equal(changed(config, samples, "7")[: len(speech)], speech)


def test_silence_is_added_on_both_sides_at_the_level_of_the_background():
    config = AugmentationConfig(**OFF, max_added_silence=0.5)
    background = 0.01 * np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    speech = background.copy()
    speech[RATE // 4 : RATE // 2] += tone(RATE // 4)
    before, after = [], []
    for number in range(200):
        longer = changed(config, speech, f"utterance-{number}")
        first = int(np.flatnonzero(longer == speech[0])[0])
        assert np.array_equal(longer[first : first + RATE], speech)
        before.append(first / RATE)
        after.append(len(longer) / RATE - 1 - first / RATE)
    for seconds in (before, after):
        assert 0 <= min(seconds) < 0.05
        assert 0.45 < max(seconds) <= 0.5
        assert np.mean(seconds) == pytest.approx(0.25, abs=0.05)
    assert abs(np.corrcoef(before, after)[0, 1]) < 0.3
    added = np.concatenate((longer[:first], longer[first + RATE :]))
    assert np.std(added) == pytest.approx(0.01, rel=0.2)


def test_narrow_bands_have_nothing_above_four_kilohertz():
    config = AugmentationConfig(**OFF, narrow_band_probability=0.5)
    sound = tone(RATE, 1000.0) + tone(RATE, 6000.0)
    is_narrow = []
    for number in range(100):
        heard = changed(config, sound, f"utterance-{number}")
        assert len(heard) == len(sound)
        power = np.abs(np.fft.rfft(heard * np.hanning(len(heard)))) ** 2
        assert power[1000] == pytest.approx(power[900:1100].max())
        ratio = power[5900:6100].max() / power[1000]
        assert ratio < 1e-6 or ratio == pytest.approx(1, rel=0.01)
        is_narrow.append(ratio < 1e-6)
    assert 35 < sum(is_narrow) < 65
    assert len(changed(config, np.zeros(0), "a")) == 0


def test_silence_before_speech_is_cut_at_random_and_speech_never():
    config = AugmentationConfig(**OFF, lead_cut_probability=0.5, silence_margin=0.05)
    speech = tone(RATE // 2)
    samples = np.concatenate((np.zeros(RATE, np.float32), speech))
    lengths = [len(changed(config, samples, str(i))) for i in range(200)]
    uncut = sum(length == len(samples) for length in lengths)
    assert 70 < uncut < 130
    margin = round(0.05 * RATE)
    assert len(speech) + margin <= min(lengths) < len(speech) + margin + RATE // 10
    for i in range(5):
        np.testing.assert_array_equal(changed(config, samples, str(i))[-len(speech) :], speech)


def test_silence_is_added_as_often_as_asked():
    config = AugmentationConfig(**OFF, max_added_silence=0.5, added_silence_probability=0.25)
    samples = tone(4000)
    longer = sum(len(changed(config, samples, str(i))) > len(samples) for i in range(400))
    assert 70 < longer < 130


def test_an_utterance_is_brought_to_a_level_whatever_it_had():
    config = AugmentationConfig(**OFF, level=(-40.0, -10.0))
    quiet, loud = 0.001 * tone(RATE), tone(RATE)
    drawn = []
    for i in range(50):
        one, other = changed(config, quiet, str(i)), changed(config, loud, str(i))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)
        drawn.append(10 * np.log10(np.square(one).mean()))
    assert -40.5 < min(drawn) < -37 and -13 < max(drawn) < -9.5
    assert not changed(config, np.zeros(RATE, np.float32), "a").any()


def test_digital_silence_stays_silent_where_silence_is_added():
    longer = changed(AugmentationConfig(**OFF, max_added_silence=0.5), np.zeros(RATE), "a")
    assert len(longer) > RATE and not longer.any()
    assert len(changed(AugmentationConfig(**OFF, max_added_silence=0.5), np.zeros(0), "a")) > 0


def test_the_end_of_speech():
    silence = np.zeros(RATE, np.float32)
    speech = tone(1600)
    weak = 0.02 * speech  # 34 dB below
    assert end_of_speech(np.concatenate((silence, speech, silence)), RATE) == RATE + 1600
    assert end_of_speech(np.concatenate((speech, weak, silence)), RATE) == 3200
    assert end_of_speech(silence, RATE) == 0
    assert end_of_speech(silence[:0], RATE) == 0
    hum = np.concatenate((speech, silence)) + 0.05 * tone(RATE + 1600, 50.0)
    assert end_of_speech(hum, RATE) == len(hum)  # nothing of it is silence
    assert end_of_speech(speech[:1003], RATE) == 1003


def test_volume_is_in_decibels():
    config = AugmentationConfig(**OFF, volume=(-6.0, 12.0))
    samples = tone(1600)
    gains = [10 * np.log10(power(changed(config, samples, str(i))) / 0.5) for i in range(300)]
    assert -6.01 < min(gains) < -5 and 11 < max(gains) < 12.01


@pytest.mark.parametrize("noise", ["white", "pink", "folder"])
@pytest.mark.parametrize("noise_seconds", [0.3, 5.0])
def test_noise_has_the_ratio_asked_for(tmp_path, noise, noise_seconds):
    if noise == "folder":
        noise = str(tmp_path)
        hum = np.random.default_rng(0).normal(0, 0.1, round(noise_seconds * 8000))
        (tmp_path / "inner").mkdir()
        soundfile.write(tmp_path / "inner" / "hum.wav", hum, 8000)
    config = AugmentationConfig(**OFF, noise_probability=1.0, noise=noise, noise_ratio=(10.0, 10.0))
    samples = tone(RATE)
    noisy = changed(config, samples, "a")
    assert 10 * np.log10(power(samples) / power(noisy - samples)) == pytest.approx(10, abs=0.01)
    assert not np.array_equal(noisy, changed(config, samples, "b"))
    assert len(changed(config, samples[:0], "a")) == 0
    assert not changed(config, np.zeros(100, np.float32), "a").any()


def test_noise_is_added_as_often_as_asked():
    config = AugmentationConfig(**OFF, noise_probability=0.3)
    samples = tone(800)
    is_noisy = [not np.array_equal(changed(config, samples, str(i)), samples) for i in range(400)]
    assert 0.22 < np.mean(is_noisy) < 0.38


def test_pink_noise_falls_with_frequency_and_white_does_not():
    samples = 1e-3 * tone(RATE)

    def ratio(color: str) -> float:
        config = AugmentationConfig(
            **OFF, noise_probability=1.0, noise=color, noise_ratio=(-40.0, -40.0)
        )
        spectrum = np.abs(np.fft.rfft(changed(config, samples, "a"))) ** 2
        return float(spectrum[500:700].mean() / spectrum[5000:7000].mean())

    assert ratio("white") == pytest.approx(1, rel=0.3)
    assert ratio("pink") == pytest.approx(10, rel=0.3)  # power as 1 / frequency


def test_a_microphone_raises_and_lowers_octaves():
    gains = np.array([0.0, 0.0, 0.0, 6.0, 0.0, -12.0, 0.0])
    for frequency, gain in ((500, 0), (1000, 6), (2000, 0), (4000, -12), (7999, 0)):
        heard = coloured(tone(RATE, frequency), RATE, gains)[1000:-1000]
        found = 10 * np.log10(power(heard) / power(tone(RATE, frequency)[1000:-1000]))
        assert found == pytest.approx(gain, abs=0.1)
    heard = coloured(np.eye(1, RATE, RATE // 2, dtype=np.float32)[0], RATE, gains)
    assert np.abs(heard).argmax() == RATE // 2  # no delay
    assert len(coloured(np.zeros(0, np.float32), RATE, gains)) == 0


def test_the_equalizer_keeps_to_its_limit():
    config = AugmentationConfig(**OFF, equalizer=6.0)
    decibels = []
    for number in range(100):
        heard = changed(config, tone(4000, 1000.0), str(number))
        decibels.append(10 * np.log10(power(heard[500:-500]) / 0.5))
    assert -6.3 < min(decibels) < -5 and 5 < max(decibels) < 6.3
    assert abs(np.mean(decibels)) < 1


def test_echoes_have_the_energy_and_the_time_asked_for():
    impulse = np.eye(1, RATE, 100, dtype=np.float32)[0]
    noise = np.random.default_rng(0).standard_normal(RATE)
    heard = reverberated(impulse, RATE, 0.5, 6.0, noise).astype(np.float64)
    assert heard[100] == pytest.approx(1, abs=1e-6)
    assert np.abs(heard[:100]).max() < 1e-6  # nothing before the sound itself
    echoes = heard[101:]
    assert 10 * np.log10(np.square(echoes).sum()) == pytest.approx(-6, abs=0.01)
    assert np.abs(echoes[8000:]).max() < 1e-6
    early, late = power(echoes[:800]), power(echoes[4000:4800])
    assert 10 * np.log10(early / late) == pytest.approx(30, abs=1.5)  # 60 dB in 0.5 s
    assert len(reverberated(np.zeros(0, np.float32), RATE, 0.5, 6.0, noise)) == 0


def test_echoes_are_added_as_often_as_asked():
    config = AugmentationConfig(**OFF, reverberation_probability=0.25)
    num_changed = sum(
        not np.array_equal(changed(config, tone(800), str(i)), tone(800)) for i in range(400)
    )
    assert 70 < num_changed < 130


def test_one_change_does_not_alter_the_draws_of_another():
    quiet = AugmentationConfig(**OFF, volume=(-6.0, 6.0))
    fast = AugmentationConfig(**{**OFF, "speeds": (1.0, 1.0, 1.0)}, volume=(-6.0, 6.0))
    np.testing.assert_array_equal(changed(quiet, tone(800), "a"), changed(fast, tone(800), "a"))


def test_a_folder_without_audio_is_refused(tmp_path):
    config = AugmentationConfig(noise_probability=0.5, noise=str(tmp_path))
    with pytest.raises(ValueError, match=r"noise should be .* holds none"):
        Augmentation(config, 1)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"num_time_masks": -1}, "num_time_masks should be"),
        ({"max_time_mask": 1.5}, "max_time_mask should be"),
        ({"noise_probability": -0.1}, "noise_probability should be"),
        ({"speeds": ()}, "speeds should be"),
        ({"speeds": (0.0,)}, "speeds should be"),
        ({"volume": (3.0,)}, "volume should be"),
        ({"noise_ratio": (20.0, 5.0)}, "noise_ratio should be"),
        ({"silence_margin": -1.0}, "silence_margin should be"),
        ({"level": (0.0,)}, "level should be"),
        ({"equalizer": -1.0}, "equalizer should be"),
        ({"reverberation_seconds": (0.0, 1.0)}, "reverberation_seconds should be above 0"),
        ({"reverberation_ratio": (3.0,)}, "reverberation_ratio should be"),
        ({"added_silence_probability": 2.0}, "added_silence_probability should be"),
    ],
)
def test_wrong_configurations(values, message):
    with pytest.raises(ValueError, match=message):
        AugmentationConfig(**values)


def test_a_configuration_survives_its_table():
    assert from_table(AugmentationConfig, to_table(EVERYTHING)) == EVERYTHING

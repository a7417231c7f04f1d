"""Small corpora for tests: tones and noise as speech."""

import numpy as np
import soundfile

from midge.data import Utterance

RATE = 16000


def tone(seconds=0.5, rate=RATE, frequency=440.0, level=0.3):
    """A tone with a little noise; the same for the same arguments."""
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(len(time)).normal(0.0, 0.01, len(time))
    return (level * np.sin(2 * np.pi * frequency * time) + noise).astype(np.float32)


def write_audio(path, samples=None, rate=RATE):
    """Writes 16-bit audio and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, tone() if samples is None else samples, rate, subtype="PCM_16")
    return path


def tones(folder, durations, texts=None):
    """Utterances u0, u1, ... of given durations, each in a file of its own."""
    texts = texts or ["ONE TWO"] * len(durations)
    return [
        Utterance(
            id=f"u{i}",
            audio=str(write_audio(folder / f"u{i}.wav", tone(seconds, frequency=200 + 40 * i))),
            duration=seconds,
            text=text,
            speaker=f"s{i % 3}",
        )
        for i, (seconds, text) in enumerate(zip(durations, texts, strict=True))
    ]

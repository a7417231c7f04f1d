"""The model that comes with midge, heard on words that a voice it never heard speaks here."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from midge.audio.resampling import resample
from midge.data.spoken import Voice, speak
from midge.data.spoken.corpus import SAMPLE_RATE, TEST_VARIANTS
from midge.data.spoken.recordings import write_flac
from midge.models import default_model_path, load

TEXT = "FOUR NINE TWO SEVEN ONE THREE"
"""What is said."""
_VOICE = Voice(accent="en-us", variant=TEST_VARIANTS[0], rate=150)
_SILENCE_SECONDS = 0.3


class Heard(NamedTuple):
    """A recording and what the model makes of it."""

    recording: Path
    """The file."""
    said: str
    """What was said."""
    heard: str
    """What was heard."""


def listen(folder: Path) -> Heard:
    """Speaks a few words into a file and transcribes it with the model that comes with midge.

    Args:
        folder: where the file goes; it is made.

    Raises:
        ValueError: if this installation has no such model, or espeak-ng is missing.
        OSError: if the file cannot be written.
    """
    model = load(default_model_path())
    speech = speak(TEXT.split(), _VOICE)
    spoken = resample(speech.samples, speech.sample_rate, SAMPLE_RATE)
    silence = np.zeros(round(_SILENCE_SECONDS * SAMPLE_RATE), np.float32)
    samples = np.concatenate((silence, 0.5 * spoken / np.abs(spoken).max(), silence))
    path = folder / "said.flac"
    write_flac(path, samples, SAMPLE_RATE)
    return Heard(path, TEXT, model.transcribe(samples, SAMPLE_RATE).text)


def told(heard: Heard) -> str:
    """In plain text, with the command to do it again."""
    return "\n".join(
        (
            f"The model that comes with midge, on {heard.recording} (synthetic):",
            f"  {'said':8}{heard.said}",
            f"  {'heard':8}{heard.heard}",
            f"Try your own: midge transcribe {heard.recording}; midge stream; midge serve --open",
        )
    )

"""Audio: files, resampling, the front end, and augmentation of training data."""

from midge.audio.augmentation import Augmentation, AugmentationConfig, end_of_speech
from midge.audio.files import (
    Audio,
    AudioError,
    AudioInfo,
    audio_blocks,
    audio_info,
    read_audio,
)
from midge.audio.front_end import FeatureStream, FrontEnd, FrontEndConfig
from midge.audio.resampling import Resampler, num_resampled, resample

__all__ = [
    "Audio",
    "AudioError",
    "AudioInfo",
    "Augmentation",
    "AugmentationConfig",
    "FeatureStream",
    "FrontEnd",
    "FrontEndConfig",
    "Resampler",
    "audio_blocks",
    "audio_info",
    "end_of_speech",
    "num_resampled",
    "read_audio",
    "resample",
]

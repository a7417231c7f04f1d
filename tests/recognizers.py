"""A recognizer with random weights, and recordings, for the tests of what uses one."""

import json
from pathlib import Path

import numpy as np
import soundfile
import torch

from midge.audio import FrontEndConfig
from midge.encoders import ConformerConfig, LSTMConfig
from midge.models import LatticeConfig, Recognizer, RecognizerConfig
from midge.tokens import TokensConfig, build_tokens

RATE = 8000
TEXTS = {"u1": "ONE TWO", "u2": "TWO", "u3": "ONE ONE TWO", "u4": "TWO ONE"}


def tiny_recognizer(
    seed: int = 0,
    is_streaming: bool = True,
    encoder: ConformerConfig | None = None,
    **lattice: object,
) -> Recognizer:
    """A recognizer of the letters of TEXTS whose labels depend on what it hears."""
    config = RecognizerConfig(
        front_end=FrontEndConfig(
            sample_rate=RATE, num_mels=8, stacking=2, stride=2, tail_padding=0.1
        ),
        tokens=TokensConfig(),
        encoder=encoder or LSTMConfig(num_layers=1, size=8, is_bidirectional=not is_streaming),
        lattice=LatticeConfig(
            **{"context_size": 1, "hidden_size": 8, "embedding_size": 4, "rnn_size": 4, **lattice}
        ),
    )
    tokens = build_tokens(config.tokens, TEXTS.items())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        recognizer = Recognizer(config, tokens)
        for parameter in recognizer.parameters():  # fresh ones are too small to decide anything
            torch.nn.init.normal_(parameter, std=2.0)
    recognizer.front_end.fit([recognizer.front_end.mels(noise(2.0, seed=0), RATE)])
    return recognizer.eval()


def noise(seconds: float, seed: int) -> np.ndarray:
    """[seconds * RATE] bursts of noise, loud and soft in turn."""
    random = np.random.default_rng(seed)
    samples = 0.1 * random.standard_normal(round(seconds * RATE))
    loudness = np.repeat(random.random(len(samples) // 400 + 1), 400)[: len(samples)]
    return (samples * loudness).astype(np.float32)


def write_nan(path: Path) -> None:
    """Writes a recording of which one sample is no number."""
    samples = noise(1.0, seed=1)
    samples[RATE // 2] = np.nan
    soundfile.write(path, samples, RATE, subtype="FLOAT")


def write_recordings(folder: Path) -> Path:
    """Writes a recording for each of TEXTS, and a manifest, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, (name, text) in enumerate(TEXTS.items()):
        samples = noise(0.5 + 0.2 * number, seed=number)
        soundfile.write(folder / f"{name}.wav", samples, RATE)
        entry = {"id": name, "audio": f"{name}.wav", "text": text.lower()}
        entry |= {"speaker": "ann" if number < 2 else "ben", "duration": len(samples) / RATE}
        entry |= {"kind": "short" if number % 2 else "long"}
        lines.append(json.dumps(entry) + "\n")
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(lines))
    return manifest

"""Takes the pictures of docs/live.md: the page, a real server and a trained model.

    midge demo speech --seed 2 --output demo
    python tests/browser/take_screenshots.py demo/speech docs/images

The sound is the first commands and digits of the demo's test set, one after the other.
"""

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile
from playwright.sync_api import sync_playwright

from midge.data import read_manifest

sys.path.insert(0, str(Path(__file__).parents[1]))
from chromium import OPTIONS, chromium_path  # noqa: E402
from page_server import Server  # noqa: E402

KINDS = {"commands": 3, "digits": 6}
PAUSE_SECONDS = 1.2
PICTURES = {
    "live-light": {"color_scheme": "light", "viewport": {"width": 1080, "height": 840}},
    "live-dark": {"color_scheme": "dark", "viewport": {"width": 1080, "height": 840}},
    "live-phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 760}},
}
PLAYED_SHARE = 0.8
"""Of the sound that is over when the picture is taken."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path, help="folder that midge demo speech has written")
    parser.add_argument("output", type=Path, help="folder for the pictures")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        sound = Path(folder) / "speech.wav"
        seconds = write_sound(arguments.demo / "data" / "test.jsonl.gz", sound)
        model = arguments.demo / "global" / "model"
        with Server(model, keep=Path(folder)) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium_path(), args=[*OPTIONS])
            for name, options in PICTURES.items():
                page = browser.new_context(device_scale_factor=2, **options).new_page()
                page.goto(f"http://127.0.0.1:{server.port}/")
                page.set_input_files("#file", sound)
                page.wait_for_timeout(1000 * PLAYED_SHARE * seconds)
                page.screenshot(path=arguments.output / f"{name}.png")
                page.close()
            browser.close()


def write_sound(manifest: Path, path: Path) -> float:
    """Joins the first recordings of each kind, and returns the length in seconds."""
    utterances = list(read_manifest(manifest))
    pieces: list[np.ndarray] = []
    rate = 0
    for kind, count in KINDS.items():
        chosen = (each for each in utterances if f"-{kind}-" in each.id)
        for utterance in itertools.islice(chosen, count):
            samples, rate = soundfile.read(utterance.audio, dtype="float32")
            pieces += [samples, np.zeros(round(PAUSE_SECONDS * rate), np.float32)]
    soundfile.write(path, np.concatenate(pieces), rate)
    return sum(map(len, pieces)) / rate


if __name__ == "__main__":
    main()

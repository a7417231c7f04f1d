"""The embedded corpus: synthetic speech, spoken by espeak-ng on the spot.

Every figure measured on it is to be called synthetic. espeak-ng comes with the extra
`midge[spoken]`; it is free software under the GPL, version 3, and no part of midge.
"""

from midge.data.spoken.corpus import SHARES, speak_corpus
from midge.data.spoken.recordings import Part
from midge.data.spoken.texts import HOMOPHONES, Homophone
from midge.data.spoken.voice import ACCENTS, Speech, Voice, speak, variants

__all__ = [
    "ACCENTS",
    "HOMOPHONES",
    "SHARES",
    "Homophone",
    "Part",
    "Speech",
    "Voice",
    "speak",
    "speak_corpus",
    "variants",
]

"""Encoders: neural networks from the frames of the front end to those of the lattice.

Knows nothing of labels or lattices. A configuration builds an encoder; an encoder runs over whole
utterances or, if it is streaming, over pieces, with an explicit state.
"""

from typing import TypeAlias

from midge.encoders.base import Encoder, State
from midge.encoders.conformer import Conformer, ConformerConfig, ConformerState
from midge.encoders.lstm import LSTM, LSTMConfig, LSTMState
from midge.encoders.streams import EncoderStream, join_states, split_state

EncoderConfig: TypeAlias = ConformerConfig | LSTMConfig
"""The settings of any encoder; `kind` says which."""

__all__ = [
    "LSTM",
    "Conformer",
    "ConformerConfig",
    "ConformerState",
    "Encoder",
    "EncoderConfig",
    "EncoderStream",
    "LSTMConfig",
    "LSTMState",
    "State",
    "join_states",
    "split_state",
]

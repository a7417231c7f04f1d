"""Events as JSON text, without holding up the other threads."""

from __future__ import annotations

import json
from typing import Any

_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)
_FEW = 16
_PIECE = 200


def written(value: Any) -> str:
    """JSON, on one line. Long lists are written in pieces.

    Python gives no other thread its turn while it writes: forty thousand words would hold up the
    event loop for a tenth of a second, whichever thread writes them.

    Example:
        >>> written({"event": "end", "words": [{"text": "naïve"}]})
        '{"event":"end","words":[{"text":"naïve"}]}'
    """
    if isinstance(value, dict):
        return f"{{{','.join(f'{_encoder.encode(key)}:{written(value[key])}' for key in value)}}}"
    if not isinstance(value, list):
        return _encoder.encode(value)
    if len(value) <= _FEW:  # of objects that may hold long lists
        return f"[{','.join(map(written, value))}]"
    firsts = range(0, len(value), _PIECE)
    pieces = (_encoder.encode(value[first : first + _PIECE])[1:-1] for first in firsts)
    return f"[{','.join(pieces)}]"

"""The one home of the tests' tolerances."""

EXACT = {"rtol": 1e-9, "atol": 1e-9}
"""float64 against an oracle."""
SINGLE = {"rtol": 1e-5, "atol": 1e-5}
"""float32 values against float64."""
SINGLE_GRADIENT = {"rtol": 1e-3, "atol": 1e-4}
"""float32 gradients against float64."""

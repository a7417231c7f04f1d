"""What all tests share."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
# The tensors of these tests are tiny: a second thread would only wait.
torch.set_num_threads(1)

"""Writes the tiny model's final scale differently: python recipes/rebalance-tiny-model.py models/tiny

What writes the residual stream (embedding, attention and MLP outputs) is multiplied by 64, the final norm's gain
divided by it. The norms take the factor out again, so the function is the same up to their epsilon. Adam moves each
number by about the learning rate whatever its size: the gain, and with it how decided the model is, now changes within
tens of updates, and the matrices are disturbed 64 times less by the noise of single minibatches.
"""

import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

FACTOR = 64.0
WRITERS = ("embed_tokens.weight", "o_proj.weight", "down_proj.weight")


def main(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        if name.endswith(WRITERS):
            tensors[name] *= FACTOR
    tensors["model.norm.weight"] /= FACTOR
    save_file(tensors, path, metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]))

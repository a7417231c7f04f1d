"""google-research/last on a row of the benchmark, with the parameters and inputs of midge.

    .venv-last/bin/python benchmarks/peers/last_row.py INPUTS.npz train
    .venv-last/bin/python benchmarks/peers/last_row.py INPUTS.npz decode --variant tuned

Runs in an environment that has last-asr and jax and neither torch nor midge; `make bench-peers`
makes it. INPUTS.npz is written by midge (`midge.bench.rows.save`). Prints one JSON object.

The variant "shipped" is LAST as it is; its unshared weight function, which it lacks, is ours. In
"tuned" the two projections of the shared ones are applied outside the loops, so that their
gradients are one product each.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import last  # noqa: E402
import numpy as np  # noqa: E402
from flax import linen as nn  # noqa: E402

STOPWATCH = Path(__file__).parents[2] / "src" / "midge" / "bench" / "stopwatch.py"


class UnsharedWeightFn(last.weight_fns.WeightFn[None]):
    """A linear layer per context state."""

    num_context_states: int
    vocab_size: int

    @nn.compact
    def __call__(self, cache, frame, state=None):
        shape = (self.num_context_states, 1 + self.vocab_size)
        weight = self.param("weight", nn.initializers.zeros, (*shape, frame.shape[-1]))
        bias = self.param("bias", nn.initializers.zeros, shape)
        if state is None:
            scores = jnp.einsum("...d,qyd->...qy", frame, weight) + bias
        else:
            scores = jnp.einsum("...d,...yd->...y", frame, weight[state]) + bias[state]
        return scores[..., 0], scores[..., 1:]


class ProjectedCacher(last.weight_fns.WeightFnCacher[jnp.ndarray]):
    """The context embeddings of another cacher, projected once."""

    cacher: last.weight_fns.WeightFnCacher[jnp.ndarray]
    hidden_size: int

    @nn.compact
    def __call__(self):
        project = nn.Dense(self.hidden_size, name="project_context_embeddings", use_bias=False)
        bias = self.param("joint_bias", nn.initializers.zeros, (self.hidden_size,))
        return project(self.cacher()) + bias


class ProjectedJointWeightFn(last.weight_fns.WeightFn[jnp.ndarray]):
    """The joint of frames and context embeddings that are projected already."""

    vocab_size: int

    @nn.compact
    def __call__(self, cache, frame, state=None):
        if state is None:
            frame = frame[..., jnp.newaxis, :]
        hidden = nn.tanh(frame + (cache if state is None else cache[state]))
        blank = jnp.squeeze(nn.Dense(1)(hidden), axis=-1)
        return blank, nn.Dense(self.vocab_size)(hidden)


class ExactFrameLabelDependent(last.alignments.FrameLabelDependent):
    """The lattice whose local models sum to 1: at n = k only blank leaves, with probability 1.

    LAST keeps blank's own probability there and so loses mass. For comparing losses alone.
    """

    def forward(self, alpha, blank, lexical, context, semiring):
        return super().forward(alpha, _last_certain(blank), lexical, context, semiring)

    def string_forward(self, alpha, blank, lexical, semiring):
        return super().string_forward(alpha, _last_certain(blank), lexical, semiring)


def _last_certain(blank):
    return [*blank[:-1], jnp.zeros_like(blank[-1])]


@dataclasses.dataclass(frozen=True)
class Model:
    """LAST's lattice for a row."""

    row: dict
    is_tuned: bool

    @property
    def differs_from_ours(self) -> bool:
        """Whether LAST's definition leaks, so that values are compared on the exact lattice."""
        return self.row["alignment"] == "label-frame" and self.row["normalization"] != "global"

    def lattice(self, is_exact: bool = False) -> last.RecognitionLattice:
        """The lattice; as midge defines it where `is_exact`."""
        sizes, alignment = self.row["shape"], last.alignments.FrameDependent()
        if self.row["alignment"] == "label-frame":
            kind = last.alignments.FrameLabelDependent
            alignment = (ExactFrameLabelDependent if is_exact else kind)(1)
        return last.RecognitionLattice(
            context=last.contexts.FullNGram(sizes["vocab"], self.row["context"]),
            alignment=alignment,
            weight_fn_cacher_factory=self.cacher,
            weight_fn_factory=self.weight_fn,
        )

    def cacher(self, context):
        sizes = self.row["shape"]
        if self.row["weights"] == "unshared":
            return last.weight_fns.NullCacher()
        if self.row["weights"] == "shared-emb":
            cacher = last.weight_fns.SharedEmbCacher(context.shape()[0], sizes["embedding"])
        else:
            cacher = last.weight_fns.SharedRNNCacher(
                sizes["vocab"], self.row["context"], sizes["rnn"], sizes["embedding"]
            )
        return ProjectedCacher(cacher, sizes["hidden"]) if self.is_tuned else cacher

    def weight_fn(self, context):
        sizes = self.row["shape"]
        if self.row["weights"] == "unshared":
            weight_fn = UnsharedWeightFn(*context.shape())
        elif self.is_tuned:
            weight_fn = ProjectedJointWeightFn(sizes["vocab"])
        else:
            weight_fn = last.weight_fns.JointWeightFn(sizes["vocab"], sizes["hidden"])
        if self.row["normalization"] == "global":
            return weight_fn
        normalize = {
            "hat": last.weight_fns.hat_normalize,
            "softmax": last.weight_fns.log_softmax_normalize,
        }[self.row["normalization"]]
        return last.weight_fns.LocallyNormalizedWeightFn(weight_fn, normalize)

    def parameters(self, ours: dict[str, np.ndarray]) -> dict:
        """Our parameters under LAST's names; the frame projection of "tuned" stands apart."""
        weight_fn, cacher = self._weight_fn_parameters(ours), self._cacher_parameters(ours)
        outside = {}
        if self.is_tuned:
            cacher = {
                "cacher": cacher,
                "project_context_embeddings": weight_fn.pop("project_context_embeddings"),
                "joint_bias": weight_fn.pop("joint_bias"),
            }
            outside = {"project_frame": weight_fn.pop("project_frame")}
        if self.row["normalization"] != "global":
            weight_fn = {"weight_fn": weight_fn}
        inside = {"weight_fn": weight_fn} | ({"weight_fn_cacher": cacher} if cacher else {})
        return {"inside": inside, "outside": outside}

    def _weight_fn_parameters(self, ours):
        if self.row["weights"] == "unshared":
            return {"weight": ours["weight"], "bias": ours["bias"]}
        weight, bias = ours["joint.output.weight"].T, ours["joint.output.bias"]
        return {
            "project_context_embeddings": {"kernel": ours["joint.context_projection.weight"].T},
            "project_frame": {"kernel": ours["joint.frame_projection.weight"].T},
            "joint_bias": ours["joint.hidden_bias"],
            "Dense_0": {"kernel": weight[:, :1], "bias": bias[:1]},
            "Dense_1": {"kernel": weight[:, 1:], "bias": bias[1:]},
        }

    def _cacher_parameters(self, ours):
        if self.row["weights"] == "unshared":
            return {}
        if self.row["weights"] == "shared-emb":
            return {"context_embeddings": ours["embedding.weight"]}
        cell = {}
        bias = ours["rnn.bias_ih_l0"] + ours["rnn.bias_hh_l0"]
        gates = (ours["rnn.weight_ih_l0"], ours["rnn.weight_hh_l0"], bias)
        for gate, *parts in zip("ifgo", *(np.split(part, 4) for part in gates), strict=True):
            cell[f"i{gate}"] = {"kernel": parts[0].T}
            cell[f"h{gate}"] = {"kernel": parts[1].T, "bias": parts[2]}
        return {"Embed_0": {"embedding": ours["embedding.weight"]}, "rnn_cell": cell}

    def losses(self, parameters, frames, *rest, is_exact: bool = False):
        """[batch] losses."""
        frames = self._projected(parameters, frames)
        return self.lattice(is_exact).apply({"params": parameters["inside"]}, frames, *rest)

    def paths(self, parameters, frames, num_frames, is_exact: bool = False):
        """Alignment labels, their number and the weight of the best paths."""
        frames = self._projected(parameters, frames)
        lattice = self.lattice(is_exact)
        method = last.RecognitionLattice.shortest_path
        return lattice.apply({"params": parameters["inside"]}, frames, num_frames, method=method)

    def _projected(self, parameters, frames):
        if not self.is_tuned:
            return frames
        return frames @ parameters["outside"]["project_frame"]["kernel"]


def measured(model: Model, task: str, parameters: dict, inputs: tuple) -> dict:
    """Compiles and measures one task; its value is that of the model as midge defines it."""
    if task == "train":
        arguments = (parameters, *inputs)
        function = jax.value_and_grad(lambda *given: model.losses(*given).sum(), argnums=(0, 1))
    else:
        arguments = (parameters, *inputs[:2])
        function = model.paths
    started = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    compile_s = time.perf_counter() - started
    newest = None

    def step() -> None:
        nonlocal newest
        newest = None  # no two results at a time
        newest = jax.block_until_ready(compiled(*arguments))

    cost = load_stopwatch().measure(step)
    name = {"train": "loss", "decode": "path_weight"}[task]
    value = newest[0] / len(inputs[0]) if task == "train" else newest[2].mean()
    if model.differs_from_ours:
        exact = {"train": model.losses, "decode": model.paths}[task]
        value = jax.jit(exact, static_argnames="is_exact")(*arguments, is_exact=True)
        value = (value if task == "train" else value[2]).mean()
    return {
        **cost._asdict(),
        name: float(value),
        "compile_s": compile_s,
        "engine": f"last {last.__version__}, jax {jax.__version__}",
    }


def load_stopwatch():
    """The module with which midge measures itself."""
    spec = importlib.util.spec_from_file_location("stopwatch", STOPWATCH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("inputs", type=Path)
    parser.add_argument("task", choices=["train", "decode"])
    parser.add_argument("--variant", choices=["shipped", "tuned"], default="shipped")
    arguments = parser.parse_args()
    with np.load(arguments.inputs) as file:
        arrays = dict(file)
    row = json.loads(str(arrays["row"]))
    model = Model(row, arguments.variant == "tuned" and row["weights"] != "unshared")
    prefix = "parameters/"
    ours = {name[len(prefix) :]: x for name, x in arrays.items() if name.startswith(prefix)}
    parameters = jax.tree.map(jnp.array, model.parameters(ours))
    names = ("frames", "num_frames", "labels", "num_labels")
    inputs = tuple(jnp.array(arrays[name]) for name in names)
    del arrays, ours
    print(json.dumps(measured(model, arguments.task, parameters, inputs)))


if __name__ == "__main__":
    main()

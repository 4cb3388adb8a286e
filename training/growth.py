"""Makes a trained model deeper without changing what it computes.

A layer adds two updates to the residual stream, and both end in a projection. A copied layer whose
projections back into the stream are zero adds nothing, so the deeper model has the same logits, and
training moves the copies from there (as in bert2BERT, Chen et al., 2022, and LLaMA Pro, Wu et al.,
2024).
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def layer_sources(num_before: int, num_layers: int) -> list[tuple[int, bool]]:
    """Return for each of ``num_layers`` layers the layer that it is taken from, and whether it is
    an added copy. Copies stand behind their layers, evenly from the first to the last.

    Raises:
        ValueError: there would be fewer layers than before.
    """
    if num_layers < num_before:
        raise ValueError(f"{num_before} layers cannot become {num_layers}: layers are only added")
    sources = [layer * num_before // num_layers for layer in range(num_layers)]
    return [
        (source, layer > 0 and sources[layer - 1] == source) for layer, source in enumerate(sources)
    ]


def deepen(tensors: Mapping[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Return the tensors of a Llama, by their exported names, with ``num_layers`` layers and the
    same logits.

    Raises:
        ValueError: it has more layers already.
    """
    layers, others = dict[int, dict[str, Tensor]](), dict[str, Tensor]()
    for name, tensor in tensors.items():
        if found := _LAYER.fullmatch(name):
            layers.setdefault(int(found[1]), {})[found[2]] = tensor
        else:
            others[name] = tensor
    for layer, (source, added) in enumerate(layer_sources(len(layers), num_layers)):
        for part, tensor in layers[source].items():
            silent = added and part in _OUTPUTS
            others[f"model.layers.{layer}.{part}"] = torch.zeros_like(tensor) if silent else tensor
    return others

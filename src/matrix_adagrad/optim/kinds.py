"""What a parameter is: a table, an output head, a hidden matrix, or a vector."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from matrix_adagrad.geometry import Batched, Column, Entry, Geometry, Row
from matrix_adagrad.torch_private import Convolution

__all__ = ["HEAD", "MATRIX", "TABLE", "VECTOR", "Kind", "Place", "kind_of", "output_heads", "places_of"]

TABLE, HEAD, MATRIX, VECTOR = "table", "head", "matrix", "vector"
# Names that models give their output layer, wherever it is.
_HEAD_NAMES = ("classifier", "embed_out", "head", "lm_head", "logits", "score")
_TABLE_NAMES = re.compile(r"embed|_emb$|\bw[pt]e$|table$")  # of parameters outside any layer, as pos_embed
_TABLES = (nn.Embedding, nn.EmbeddingBag)
_LAYERS = (nn.Linear, *_TABLES, Convolution)


class Kind(NamedTuple):
    """What a parameter is, why, and the geometry that gives it one scale per row."""

    name: str
    reason: str
    by_row: Geometry


class Place(NamedTuple):
    """One place where a module holds a parameter. A tied parameter has several."""

    name: str
    modules: tuple[nn.Module, ...]  # from the model down to the module itself

    @property
    def layer(self) -> nn.Module:
        """The layer that users would name: parametrized and adapted layers hold their parameters further down."""
        for depth, module in enumerate(self.modules):
            if isinstance(module, ParametrizationList) and depth >= 2:
                return self.modules[depth - 2]  # layer.parametrizations.weight
            if _is_adapted(module):
                return module
        return self.modules[-1]


def places_of(model: nn.Module) -> dict[nn.Parameter, list[Place]]:
    """Every parameter, in the model's order, with all the places that hold it."""
    places: dict[nn.Parameter, list[Place]] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for prefix, module in modules.items():
        parts = prefix.split(".") if prefix else []
        chain = tuple(modules[".".join(parts[:depth])] for depth in range(len(parts) + 1))
        for name, param in module.named_parameters(recurse=False):
            places.setdefault(param, []).append(Place(f"{prefix}.{name}" if prefix else name, chain))
    return places


def kind_of(param: nn.Parameter, places: Sequence[Place], heads: dict[nn.Module, str]) -> Kind:
    """What a parameter is, given its model's output heads and their reasons."""
    layers = [place.layer for place in places]
    plain = [_plain(layer) for layer in layers]
    tables = [layer for layer in plain if isinstance(layer, _TABLES)]
    if param.dim() < 2:
        return Kind(VECTOR, "a vector: it has no rows", Entry())
    if any(_own_weight(layer) is param for layer in tables):
        return Kind(TABLE, "a table: each row is an item", Row())
    # A convolution is one matrix with a row per channel. Other tensors are batches of matrices.
    is_convolution = any(isinstance(layer, Convolution) for layer in plain)
    rows, columns = (len(param), math.prod(param.shape[1:])) if is_convolution else param.shape[-2:]
    batch = 1 if is_convolution else math.prod(param.shape[:-2])
    if 1 in (rows, columns):
        return Kind(VECTOR, "vectors" if batch > 1 else f"a single {'row' if rows == 1 else 'column'}", Entry())
    if any(_are_stacked_vectors(param, layer) for layer in layers):
        return Kind(VECTOR, "stacked biases, next to their matrices", Entry())
    by_row = Row() if is_convolution or param.dim() == 2 else Batched(Row())
    # The extra parameters of a parametrized or adapted layer belong to its items or outputs if the counts match.
    for items in (layer.num_embeddings for layer in tables):
        if items in (rows, columns):
            along = "row" if items == rows else "column"
            return Kind(TABLE, f"part of a table: each {along} is an item", by_row if items == rows else Column())
    if not isinstance(places[0].modules[-1], _LAYERS) and _TABLE_NAMES.search(places[0].name.rpartition(".")[2]):
        return Kind(TABLE, "a table, by its name", by_row)
    for layer in layers:
        if layer in heads and _outputs(layer) in (rows, None):
            return Kind(HEAD, heads[layer], by_row)
    hidden = "convolution" if is_convolution else "matrix"
    return Kind(MATRIX, f"a hidden {hidden}" if batch == 1 else f"a batch of {batch} hidden matrices", by_row)


def _are_stacked_vectors(param: nn.Parameter, layer: nn.Module) -> bool:
    """Whether the layer also has a batch of matrices, with one of these vectors along a side of each."""
    beside = [*layer.parameters(recurse=False)]
    if isinstance(parametrised := getattr(layer, "parametrizations", None), nn.ModuleDict):
        beside += parametrised.parameters()
    *batch, length = param.shape
    return any(other.dim() > 2 and [*other.shape[:-2]] == batch and length in other.shape[-2:] for other in beside)


# --------------------------------------------------------------------------------------------------------- output heads


def output_heads(model: nn.Module) -> dict[nn.Module, str]:
    """The output layers, with a reason for each: those that the model names.

    Or else those with an output for each row of a table next to them, and a linear layer at the model's end.
    """
    heads: dict[nn.Module, str] = {}
    get_output_embeddings: Any = getattr(model, "get_output_embeddings", lambda: None)  # Hugging Face models have it
    named = None
    with contextlib.suppress(NotImplementedError):
        named = get_output_embeddings()
    if isinstance(named, nn.Module):
        heads[[named, *_linear_layers(named)][-1]] = "the model's output layer"
    is_found = bool(heads)
    for name, module in model.named_modules():
        *path, own = name.split(".")
        layers = list(_linear_layers(module)) if own in _HEAD_NAMES else []
        if layers:
            heads.setdefault(layers[-1], "an output head, by its name")
            is_found |= not path or _outputs(layers[-1]) != 1  # attention has a "score" layer too, with one output
    if not is_found:
        heads |= _heads_next_to_tables(model)
    containers = nn.Linear | nn.Sequential | nn.ModuleList | nn.ModuleDict
    is_a_block_of_torch = type(model).__module__.startswith("torch.nn.") and not isinstance(model, containers)
    layers = [] if is_found or is_a_block_of_torch else list(_linear_layers(model))
    if layers and layers[-1] in (model, *model.children()):
        heads[layers[-1]] = "the last linear layer, taken for the output head"
    return heads


def _heads_next_to_tables(model: nn.Module) -> dict[nn.Module, str]:
    """Linear layers that widen to an output for each row of a table in the same module, wherever they are declared."""
    heads: dict[nn.Module, str] = {}
    for module in model.modules():
        rows = {table.num_embeddings for table in map(_plain, module.children()) if isinstance(table, _TABLES)}
        for child in module.children() if rows else ():
            plain, outputs = _plain(child), _outputs(child)
            if isinstance(plain, nn.Linear) and outputs in rows and outputs > plain.in_features:
                heads[child] = f"an output head: an output for each of the {outputs:,} rows of a table next to it"
    return heads


def _linear_layers(module: nn.Module) -> Iterator[nn.Module]:
    """The linear layers inside. An adapted layer counts as one."""
    is_other = isinstance(_plain(module), (*_TABLES, Convolution))
    if isinstance(module, nn.Linear) or (_is_adapted(module) and not is_other):
        yield module
        return
    for child in module.children():
        yield from _linear_layers(child)


def _is_adapted(module: nn.Module) -> bool:
    """Whether low-rank factors were added next to a layer, as PEFT, torchtune, LitGPT and loralib do."""
    names = {name.lower() for name, _ in (*module.named_children(), *module.named_parameters(recurse=False))}
    return "base_layer" in names or {"lora_a", "lora_b"} <= names


def _plain(layer: nn.Module) -> nn.Module:
    """The layer itself, without adapters."""
    if isinstance(layer, _LAYERS) or not _is_adapted(layer):
        return layer
    children = [_plain(child) for name, child in layer.named_children() if not name.lower().startswith("lora_")]
    return next((child for child in children if isinstance(child, _LAYERS)), layer)


def _outputs(layer: nn.Module) -> int | None:
    """How many outputs a layer has, if known."""
    layer = _plain(layer)
    outputs = getattr(layer, "out_features", None)
    if isinstance(outputs, int):
        return outputs
    weight = _own_weight(layer)
    return len(weight) if weight is not None and weight.dim() else None


def _own_weight(layer: nn.Module) -> nn.Parameter | None:
    """The layer's weight, if it is a parameter. A parametrized layer computes it from others."""
    return dict(layer.named_parameters(recurse=False)).get("weight")

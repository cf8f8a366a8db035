"""Tables as FBGEMM has them, and as this package does: their names, features and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn

from matrix_adagrad.bags import EmbeddingBags

__all__ = ["Modules", "copied_modules", "names_of", "pooling_of", "tables_read"]

Modules = EmbeddingBags | Sequence[nn.Embedding]


def names_of(tables: Modules) -> list[str]:
    """The names of the tables. A list of modules has none."""
    return list(tables.tables) if isinstance(tables, EmbeddingBags) else []


def tables_read(tables: Modules) -> list[Tensor]:
    """The table that each feature reads."""
    if isinstance(tables, EmbeddingBags):
        return [tables.tables[name] for name, features in tables.features_by_table.items() for _ in features]
    return [table.weight for table in tables]


def pooling_of(tables: Modules) -> PoolingMode:
    """The pooling mode of all tables. Raises an error for anything FBGEMM's lookup does not support."""
    modules: dict[Any, nn.Module] = {}
    if isinstance(tables, EmbeddingBags):
        modules |= tables.to_modules()
    elif isinstance(tables, Sequence) and tables and all(isinstance(table, nn.Embedding) for table in tables):
        modules |= enumerate(tables)
    else:
        raise TypeError(
            "tables must be an EmbeddingBags, which EmbeddingBags.from_modules makes of nn.EmbeddingBags, or a list of "
            f"nn.Embedding, at least one, got {tables!r}"
        )
    for name, module in modules.items():
        for option in ("max_norm", "scale_grad_by_freq", "padding_idx"):
            value = getattr(module, option)
            if value is not None and value is not False:  # a padding_idx of 0 counts
                raise ValueError(f"{option}={value} of table {name!r} cannot be carried over to FBGEMM")
    modes = {name: getattr(module, "mode", "none") for name, module in modules.items()}
    if len(set(modes.values())) > 1:
        raise ValueError(
            f"the tables pool by {modes}, and FBGEMM has one mode for all: carry those of one mode over at a time, in "
            "EmbeddingBags.from_modules of some of bags.to_modules()"
        )
    return PoolingMode[modes.popitem()[1].upper()]


def copied_modules(tables: SplitTableBatchedEmbeddingBagsCodegen, feature_names: Sequence[str] | None) -> Any:
    """Copies of the tables: an `EmbeddingBags`, or without pooling a module for each."""
    weights, table_map = [weight.clone() for weight in tables.split_embedding_weights()], tables.feature_table_map
    if tables.pooling_mode == PoolingMode.NONE:
        return nn.ModuleList(nn.Embedding.from_pretrained(weight, freeze=False, sparse=True) for weight in weights)
    names = tables.table_names or [f"table_{number}" for number in range(len(weights))]
    if len(set(names)) < len(names):
        raise ValueError(f"table_names={names} has a name twice: shards of one table cannot be carried over")
    if feature_names is not None and len(feature_names) != len(table_map):
        raise ValueError(f"feature_names must have the {len(table_map)} features' names, got {feature_names}")
    features: dict[str, list[str]] = {name: [] for name in names}
    for number, table in enumerate(table_map):
        own = features[names[table]]
        default = names[table] if table_map.count(table) == 1 else f"{names[table]}_{len(own)}"
        own.append(default if feature_names is None else feature_names[number])
    mode = tables.pooling_mode.name.lower()
    modules = [nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode=mode) for weight in weights]
    return EmbeddingBags.from_modules(dict(zip(names, modules, strict=True)), features)

"""Tables with a row per item: their growth, their memory in files, and their form for serving."""

from matrix_adagrad.tables.mapped import map_table
from matrix_adagrad.tables.quantized import ByteEmbeddingBag, QuantizedRows, quantize_rows
from matrix_adagrad.tables.rows import evict, resize_table

__all__ = ["ByteEmbeddingBag", "QuantizedRows", "evict", "map_table", "quantize_rows", "resize_table"]

"""Writes a checkpoint as a GGUF file with quantised weights. Runs in llama.cpp's environment.

    python gguf_writer.py MODEL_DIRECTORY FILE.gguf q8_0|q4_0|f16

All matrices have that type. A matrix whose rows cannot be divided into blocks of 32 keeps float16,
as with llama.cpp's own converter (the down projection of the model tiny). The file has no
vocabulary, because the worker sends token ids.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
from checkpoint_tensors import llama_tensors, read_config

_FILE_TYPES = {
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
}


def write_gguf(directory: Path, path: Path, kind: str) -> None:
    """Write the file, which appears under its name only when it is complete."""
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    describe(writer, directory, kind)
    wanted = gguf.GGMLQuantizationType[kind.upper()]
    for name, tensor in llama_tensors(directory):
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor)
            continue
        block_size, _ = gguf.GGML_QUANT_SIZES[wanted]
        fits = tensor.shape[-1] % block_size == 0
        used = wanted if fits else gguf.GGMLQuantizationType.F16
        writer.add_tensor(name, gguf.quants.quantize(tensor, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(path)


def describe(writer: gguf.GGUFWriter, directory: Path, kind: str) -> None:
    config = read_config(directory)
    num_heads, hidden_size = config["num_attention_heads"], config["hidden_size"]
    rope = config.get("rope_parameters") or config
    writer.add_name(directory.name)
    writer.add_file_type(_FILE_TYPES[kind])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden_size)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config.get("head_dim") or hidden_size // num_heads)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])

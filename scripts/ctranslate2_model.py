"""A model of CTranslate2 (int8 or float32) made of a GGUF file of the architecture llama.

Usage: ctranslate2_model.py FILE.gguf FOLDER [int8|float32]. Needs numpy, gguf and ctranslate2. It
sets the same weights that ctranslate2's converter takes from a checkpoint of transformers.
"""

import os
import sys

import gguf
import numpy as np
from ctranslate2.converters import utils
from ctranslate2.specs import common_spec, transformer_spec


def halves(matrix, n_heads):
    """Rows of rotary pairs (2i, 2i+1), as GGUF has them, to pairs (i, i + half)."""
    half = matrix.shape[0] // n_heads // 2
    pairs = matrix.reshape(n_heads, half, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(matrix.shape))


def main(path, folder, quantization="int8"):
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    def field(key):
        return reader.fields[key].contents()

    def weight(name):
        tensor = tensors[name + ".weight"]
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        return np.ascontiguousarray(values.astype(np.float32))

    n_heads = field("llama.attention.head_count")
    n_heads_kv = field("llama.attention.head_count_kv")
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        field("llama.block_count"), n_heads, activation=common_spec.Activation.SWISH,
        pre_norm=True, ffn_glu=True, rms_norm=True, rotary_dim=0, rotary_interleave=False,
        rotary_base=field("llama.rope.freq_base"),
        num_heads_kv=None if n_heads_kv == n_heads else n_heads_kv)
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = weight("token_embd")
    decoder.projection.weight = weight("output" if "output.weight" in tensors else "token_embd")
    decoder.layer_norm.gamma = weight("output_norm")
    for i, layer in enumerate(decoder.layer):
        prefix = "blk.%d." % i
        layer.self_attention.layer_norm.gamma = weight(prefix + "attn_norm")
        layer.ffn.layer_norm.gamma = weight(prefix + "ffn_norm")
        qkv = [common_spec.LinearSpec() for _ in range(3)]
        qkv[0].weight = halves(weight(prefix + "attn_q"), n_heads)
        qkv[1].weight = halves(weight(prefix + "attn_k"), n_heads_kv)
        qkv[2].weight = weight(prefix + "attn_v")
        utils.fuse_linear(layer.self_attention.linear[0], qkv)
        layer.self_attention.linear[1].weight = weight(prefix + "attn_output")
        layer.ffn.linear_0.weight = weight(prefix + "ffn_gate")
        layer.ffn.linear_0_noact.weight = weight(prefix + "ffn_up")
        layer.ffn.linear_1.weight = weight(prefix + "ffn_down")
    tokens = field("tokenizer.ggml.tokens")
    spec.register_vocabulary(tokens)
    spec.config.bos_token = tokens[field("tokenizer.ggml.bos_token_id")]
    spec.config.eos_token = tokens[field("tokenizer.ggml.eos_token_id")]
    spec.config.unk_token = tokens[0]
    spec.config.layer_norm_epsilon = field("llama.attention.layer_norm_rms_epsilon")
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    os.makedirs(folder, exist_ok=True)
    spec.save(folder)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])

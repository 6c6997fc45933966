"""A GGUF file of the shape of Llama-3.2-1B with random F16 weights, to measure speed with.

Usage: random_llama.py TOKENIZER.gguf OUT.gguf. The tokenizer of the first is padded with tokens
that are not used. Needs numpy and gguf; llama.cpp's llama-quantize makes the other types of it.
"""

import sys

import gguf
import numpy as np

VOCAB, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_WIDTH, HIDDEN = 128256, 2048, 16, 32, 8, 64, 8192
UNUSED = 5  # a type of tokens


def add_shape(writer):
    writer.add_name("shape of Llama-3.2-1B, random weights")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(VOCAB)
    writer.add_context_length(131072)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(HEAD_WIDTH)
    writer.add_key_length(HEAD_WIDTH)
    writer.add_value_length(HEAD_WIDTH)


def add_tokenizer(writer, reader):
    for key, field in reader.fields.items():
        if not key.startswith("tokenizer."):
            continue
        value = field.contents()
        if key == "tokenizer.ggml.tokens":
            n_more = VOCAB - len(value)
            writer.add_token_list(value + ["<|pad_%d|>" % i for i in range(n_more)])
        elif key == "tokenizer.ggml.token_type":
            writer.add_token_types(value + [UNUSED] * (VOCAB - len(value)))
        elif key == "tokenizer.ggml.scores":
            writer.add_token_scores(value + [0.0] * (VOCAB - len(value)))
        elif key == "tokenizer.ggml.merges":
            writer.add_token_merges(value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)


def add_weights(writer):
    rng = np.random.default_rng(1)

    def matrix(name, n_out, n_in):
        weights = rng.standard_normal((n_out, n_in), dtype=np.float32) * np.float32(0.02)
        writer.add_tensor(name + ".weight", weights.astype(np.float16))

    def norm(name):
        writer.add_tensor(name + ".weight", np.ones(WIDTH, dtype=np.float32))

    matrix("token_embd", VOCAB, WIDTH)  # the head too
    for i in range(LAYERS):
        layer = "blk.%d." % i
        norm(layer + "attn_norm")
        matrix(layer + "attn_q", HEADS * HEAD_WIDTH, WIDTH)
        matrix(layer + "attn_k", KV_HEADS * HEAD_WIDTH, WIDTH)
        matrix(layer + "attn_v", KV_HEADS * HEAD_WIDTH, WIDTH)
        matrix(layer + "attn_output", WIDTH, HEADS * HEAD_WIDTH)
        norm(layer + "ffn_norm")
        matrix(layer + "ffn_gate", HIDDEN, WIDTH)
        matrix(layer + "ffn_up", HIDDEN, WIDTH)
        matrix(layer + "ffn_down", WIDTH, HIDDEN)
    norm("output_norm")


def main(tokenizer, out):
    writer = gguf.GGUFWriter(out, "llama")
    add_shape(writer)
    add_tokenizer(writer, gguf.GGUFReader(tokenizer))
    add_weights(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])

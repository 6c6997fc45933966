"""The built-in model in PyTorch: layers, beam search with a cache, and its GGUF file.

Owns what training and checking share; train_tiny.py owns text, training and measurement.
"""

import json
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

END = "<|endoftext|>"
END_ID = 0
EPSILON = 1e-5
ROPE_BASE = 10000.0
MAX_BYTES = 3_000_000


# Layers: llama with rotary pairs (2i, 2i+1), as GGUF stores them, and a tied head


class Shape:
    def __init__(self, vocab, width, layers, heads, kv_heads, hidden):
        self.vocab, self.width, self.layers = vocab, width, layers
        self.heads, self.kv_heads, self.hidden = heads, kv_heads, hidden
        self.head_width = width // heads


def rotate(x, turn):
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        width, kv_width = shape.width, shape.kv_heads * shape.head_width
        self.attn_norm = nn.Parameter(torch.ones(width))
        self.ffn_norm = nn.Parameter(torch.ones(width))
        self.attn_q = nn.Linear(width, width, bias=False)
        self.attn_k = nn.Linear(width, kv_width, bias=False)
        self.attn_v = nn.Linear(width, kv_width, bias=False)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.ffn_gate = nn.Linear(width, shape.hidden, bias=False)
        self.ffn_up = nn.Linear(width, shape.hidden, bias=False)
        self.ffn_down = nn.Linear(shape.hidden, width, bias=False)

    def forward(self, x, turn, dropout, past=None):
        """past: None, or the [keys, values] of earlier positions, to which one is added."""
        shape = self.shape
        rows, length, width = x.shape
        y = F.rms_norm(x, (width,), self.attn_norm, EPSILON)
        q = rotate(self.attn_q(y).view(rows, length, shape.heads, shape.head_width), turn)
        k = rotate(self.attn_k(y).view(rows, length, shape.kv_heads, shape.head_width), turn)
        v = self.attn_v(y).view(rows, length, shape.kv_heads, shape.head_width)
        group = shape.heads // shape.kv_heads
        if past is None:
            k = k.repeat_interleave(group, dim=2)
            v = v.repeat_interleave(group, dim=2)
            y = F.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
            ).transpose(1, 2)
        else:
            past[0] = torch.cat([past[0], k.transpose(1, 2)], dim=2)
            past[1] = torch.cat([past[1], v.transpose(1, 2)], dim=2)
            q = q.view(rows, shape.kv_heads, group, shape.head_width)
            y = F.scaled_dot_product_attention(q, past[0], past[1])
        y = self.attn_output(y.reshape(rows, length, width))
        x = x + F.dropout(y, dropout, self.training)
        y = F.rms_norm(x, (width,), self.ffn_norm, EPSILON)
        y = self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))
        return x + F.dropout(y, dropout, self.training)


class Llama(nn.Module):
    def __init__(self, shape, dropout=0.0):
        super().__init__()
        self.shape, self.dropout = shape, dropout
        self.token_embd = nn.Embedding(shape.vocab, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.Parameter(torch.ones(shape.width))
        nn.init.normal_(self.token_embd.weight, std=0.05)
        for block in self.blk:
            for linear in block.children():
                nn.init.normal_(linear.weight, std=0.5 * linear.in_features**-0.5)
            nn.init.zeros_(block.attn_output.weight)
            nn.init.zeros_(block.ffn_down.weight)

    def forward(self, ids, first=0, past=None):
        """Logits of every position; with past (new_past), of the only one, at position first."""
        half = self.shape.head_width // 2
        speed = ROPE_BASE ** (-torch.arange(half, dtype=torch.float32) / half)
        positions = torch.arange(first, first + ids.shape[1], dtype=torch.float32)
        angle = torch.outer(positions, speed)
        turn = torch.polar(torch.ones_like(angle), angle)[:, None, :]
        x = F.dropout(self.token_embd(ids), self.dropout, self.training)
        for i, block in enumerate(self.blk):
            x = block(x, turn, self.dropout, past and past[i])
        x = F.rms_norm(x, (self.shape.width,), self.output_norm, EPSILON)
        return F.linear(x, self.token_embd.weight)

    def new_past(self, rows):
        none = torch.zeros(rows, self.shape.kv_heads, 0, self.shape.head_width)
        return [[none, none] for _ in self.blk]


# Beam search


def extend_rows(rows, pool, beams, made, last):
    """One step of one prompt's rows, each its new ids, its best next ids and their sums.

    Ended texts go to pool. Returns the rows that live on as (sum, new ids, parent), none once no
    better text can come.
    """
    offers = []
    for parent, (_, sums, ids) in enumerate(rows):
        offers += [(score, parent, i) for score, i in zip(sums, ids)]
    offers.sort(reverse=True)
    following = []
    for rank, (score, parent, i) in enumerate(offers[: 2 * beams]):
        new = rows[parent][0] + [i]
        if i == END_ID or last:
            if rank < beams:
                pool.append((score / made, new))
        elif len(following) < beams:
            following.append((score, new, parent))
    pool.sort(reverse=True)
    del pool[beams:]
    if following and len(pool) == beams and following[0][0] / made <= pool[-1][0]:
        return []
    return following


@torch.no_grad()
def beam_search(model, prompts, beams, budget):
    """The best continuation of each prompt (ids, BOS first), as (score, ids), EOS included.

    Score = sum / length (length penalty 1). All prompts advance together, one position a pass:
    inside its prompt a prompt has one row, then up to `beams`, and none once it is over.
    """
    pools = [[] for _ in prompts]
    # A live row: its prompt, the sum of its new ids' log-probabilities, these ids, the id to feed.
    live = [(p, 0.0, [], prompt[0]) for p, prompt in enumerate(prompts)]
    past, position = model.new_past(len(live)), 0
    while live:
        logits = model(torch.tensor([[row[3]] for row in live]), position, past)[:, -1]
        sums = torch.tensor([row[1] for row in live])[:, None]
        best = (F.log_softmax(logits, dim=-1) + sums).topk(2 * beams)
        values, indices = best.values.tolist(), best.indices.tolist()
        position += 1
        following, parents, at = [], [], 0
        while at < len(live):
            p, start = live[at][0], at
            while at < len(live) and live[at][0] == p:
                at += 1
            if position < len(prompts[p]):
                following.append((p, 0.0, [], prompts[p][position]))
                parents.append(start)
                continue
            rows = [(live[r][2], values[r], indices[r]) for r in range(start, at)]
            made = position - len(prompts[p]) + 1
            for score, new, parent in extend_rows(rows, pools[p], beams, made, made == budget):
                following.append((p, score, new, new[-1]))
                parents.append(start + parent)
        if parents and parents != list(range(len(live))):
            order = torch.tensor(parents)
            past = [[k.index_select(0, order), v.index_select(0, order)] for k, v in past]
        live = following
    return [pool[0] for pool in pools]


# File


def write_gguf(model, tokenizer, path, context):
    import gguf
    from gguf.quants import quantize

    shape = model.shape
    q8, f32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32
    partial = path + ".part"
    writer = gguf.GGUFWriter(partial, "llama")
    writer.add_type("model")
    writer.add_name("llmlua built-in")
    writer.add_description(
        "Small model of the English of the King James Version, for demonstration and tests"
    )
    writer.add_license("CC0-1.0")
    writer.add_languages(["en"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPSILON)

    tokens = [tokenizer.id_to_token(i) for i in range(shape.vocab)]
    kinds = [gguf.TokenType.CONTROL if t == END else gguf.TokenType.NORMAL for t in tokens]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in merges]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(END_ID)
    writer.add_eos_token_id(END_ID)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)

    for name, weight in model.state_dict().items():
        data = weight.detach().float().numpy()
        if data.ndim == 2:
            name = name if name.endswith(".weight") else name + ".weight"
            writer.add_tensor(name, quantize(data, q8), raw_dtype=q8)
        else:
            writer.add_tensor(name + ".weight", data, raw_dtype=f32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    size = os.path.getsize(partial)
    if size > MAX_BYTES:
        raise SystemExit(f"{partial}: {size} bytes, {MAX_BYTES} allowed")
    os.replace(partial, path)
    return size


def read_gguf(path):
    """Model (weights dequantised to float32) and tokenizer from the file alone."""
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    reader = GGUFReader(path)

    def value(key):
        return reader.fields[key].contents()

    tokens = value("tokenizer.ggml.tokens")
    shape = Shape(
        len(tokens),
        value("llama.embedding_length"),
        value("llama.block_count"),
        value("llama.attention.head_count"),
        value("llama.attention.head_count_kv"),
        value("llama.feed_forward_length"),
    )
    model = Llama(shape)
    names = {(n if n.endswith(".weight") else n + ".weight"): n for n in model.state_dict()}
    state = {}
    for tensor in reader.tensors:
        data = dequantize(tensor.data, tensor.tensor_type)
        state[names[tensor.name]] = torch.from_numpy(np.array(data, dtype=np.float32))
    model.load_state_dict(state)
    merges = [tuple(m.split(" ")) for m in value("tokenizer.ggml.merges")]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return model, tokenizer

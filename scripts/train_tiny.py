#!/usr/bin/env python3
"""Trains the built-in model and writes it as a Q8_0 GGUF file (models/builtin.gguf).

Owns the whole path: text, byte-level BPE, training, export, check of the file written.

Needs Python 3.11 with PyTorch, NumPy, tokenizers and gguf from PyPI, and Debian's packages
bible-kjv and bible-kjv-text, which supply the text:

    apt-get install bible-kjv bible-kjv-text
    python3 -m venv venv
    venv/bin/pip install torch numpy tokenizers gguf
    venv/bin/python scripts/train_tiny.py --out models/builtin.gguf

The text is the King James Version of 1611/1769, in the public domain, read through the program
`bible` (one verse a line); every 40th chapter is held out. A document is a run of whole verses of
one chapter, without their numbers, that ends where a sentence ends; it starts with <|endoftext|>
as BOS and ends with <|endoftext|> as EOS. Each pass over the text cuts it into other documents.

The number of steps is fixed and every random choice is seeded, so that two runs on the same
machine, thread count and library versions agree up to the order of floating-point sums.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

END = "<|endoftext|>"
END_ID = 0
HOLD_OUT_EVERY = 40
EPSILON = 1e-5
ROPE_BASE = 10000.0
MAX_BYTES = 3_000_000
PIECE = 256  # tokens that one worker takes at a time
SAMPLE_PROMPTS = [
    "",
    "In the beginning",
    "And it came to pass",
    "Blessed is the man",
    "The king said unto him,",
    "The capital of France is",
]


# Text


def read_chapters():
    """Returns a list of chapters, each a list of its verses, in the order of the book."""
    shown = subprocess.run(
        ["bible", "-f", "gen1:1-rev22:21"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        encoding="ascii",
    ).stdout
    chapters, last = [], None
    for line in shown.splitlines():
        match = re.fullmatch(r"(\w+?)(\d+):(\d+) (.+)", line)
        if not match:
            raise SystemExit(f"unexpected line from bible: {line!r}")
        name = (match[1], match[2])
        if name != last:
            chapters.append([])
            last = name
        chapters[-1].append(" ".join(match[4].split()))
    return chapters


def split_chapters(chapters):
    held = [c for i, c in enumerate(chapters) if i % HOLD_OUT_EVERY == HOLD_OUT_EVERY // 2]
    kept = [c for i, c in enumerate(chapters) if i % HOLD_OUT_EVERY != HOLD_OUT_EVERY // 2]
    return kept, held


def cut_documents(chapters, rng):
    """Cuts chapters into documents: mostly 1 to 4 verses, one in five of 5 to 16."""
    documents = []
    for verses in chapters:
        run, want = [], 0
        for verse in verses:
            if not run:
                want = rng.randint(5, 16) if rng.random() < 0.2 else rng.randint(1, 4)
            run.append(verse)
            if len(run) >= want and verse[-1] in ".?!)":
                documents.append(" ".join(run))
                run = []
        if run:
            documents.append(" ".join(run))
    return documents


# Tokenizer


def train_tokenizer(chapters, size):
    """Byte-level BPE with the pre-tokenizer that GGUF calls gpt-2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # The same cuts as in training, so that first words of documents (no space) are counted too.
    documents = cut_documents(chapters, random.Random(0))
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def encode_documents(tokenizer, documents):
    coded = tokenizer.encode_batch(documents, add_special_tokens=False)
    return [[END_ID] + c.ids + [END_ID] for c in coded]


# Model: llama with rotary pairs (2i, 2i+1), as GGUF stores them, and a tied head


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

    def forward(self, x, turn, dropout):
        shape = self.shape
        rows, length, width = x.shape
        y = F.rms_norm(x, (width,), self.attn_norm, EPSILON)
        q = rotate(self.attn_q(y).view(rows, length, shape.heads, shape.head_width), turn)
        k = rotate(self.attn_k(y).view(rows, length, shape.kv_heads, shape.head_width), turn)
        v = self.attn_v(y).view(rows, length, shape.kv_heads, shape.head_width)
        group = shape.heads // shape.kv_heads
        k = k.repeat_interleave(group, dim=2)
        v = v.repeat_interleave(group, dim=2)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        y = self.attn_output(y.transpose(1, 2).reshape(rows, length, width))
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

    def forward(self, ids):
        """Logits of every position."""
        half = self.shape.head_width // 2
        speed = ROPE_BASE ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = torch.outer(torch.arange(ids.shape[1], dtype=torch.float32), speed)
        turn = torch.polar(torch.ones_like(angle), angle)[:, None, :]
        x = F.dropout(self.token_embd(ids), self.dropout, self.training)
        for block in self.blk:
            x = block(x, turn, self.dropout)
        x = F.rms_norm(x, (self.shape.width,), self.output_norm, EPSILON)
        return F.linear(x, self.token_embd.weight)


# Training


class Muon:
    """Momentum whose update is made orthogonal, for the matrices inside the blocks."""

    def __init__(self, weights, rate, decay, momentum=0.95):
        self.rate, self.decay, self.momentum = rate, decay, momentum
        groups = {}
        for weight in weights:
            groups.setdefault(tuple(weight.shape), []).append(weight)
        parts = [g[i : i + 4] for g in groups.values() for i in range(0, len(g), 4)]
        self.groups = [(p, torch.zeros(len(p), *p[0].shape)) for p in parts]

    @torch.no_grad()
    def step_group(self, group, scale):
        weights, velocity = group
        grad = torch.stack([w.grad for w in weights])
        velocity.lerp_(grad, 1 - self.momentum)
        update = orthogonalise(grad.lerp(velocity, self.momentum))
        rows, columns = weights[0].shape
        size = self.rate * scale * max(1.0, rows / columns) ** 0.5
        for weight, change in zip(weights, update):
            weight.mul_(1 - self.rate * scale * self.decay).sub_(change, alpha=size)

    def step(self, scale, workers):
        list(workers.map(lambda group: self.step_group(group, scale), self.groups))


def orthogonalise(x):
    """Newton-Schulz iteration towards the nearest matrix with singular values near 1."""
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


def pack_stream(tokenizer, chapters, rng):
    """Endless stream of ids: documents in random order, cut anew on every pass."""
    while True:
        documents = cut_documents(chapters, rng)
        rng.shuffle(documents)
        for ids in encode_documents(tokenizer, documents):
            yield from ids


def take_batch(stream, rows, length):
    ids = torch.tensor([next(stream) for _ in range(rows * length + 1)])
    return ids[:-1].view(rows, length), ids[1:].view(rows, length)


def take_length(done, context):
    """Short rows first: they cost less attention; the last rows are as long as the context."""
    if done < 0.5:
        return context // 4
    return context // 2 if done < 0.85 else context


def schedule(done):
    """Share of the top rate: a short rise, a plateau, a straight fall to zero."""
    warm, cool = 0.02, 0.6
    return min((done + 0.002) / warm, 1.0, (1.0 - done) / cool)


def add_gradients(model, inputs, targets, workers):
    """Sets the gradients of the batch's mean loss, which it returns.

    The batch is cut into pieces that single-threaded workers take as they come free; the sums are
    made in the order of the pieces, so that the result does not depend on which worker took what.
    """
    weights = list(model.parameters())
    rows = max(1, PIECE // inputs.shape[1])
    pieces = list(zip(inputs.split(rows), targets.split(rows)))

    def work(piece):
        logits = model(piece[0]).flatten(0, 1)
        loss = F.cross_entropy(logits, piece[1].flatten(), reduction="sum") / inputs.numel()
        return loss.item(), torch.autograd.grad(loss, weights)

    total = 0.0
    for loss, grads in workers.map(work, pieces):
        total += loss
        for weight, grad in zip(weights, grads):
            weight.grad = grad if weight.grad is None else weight.grad.add_(grad)
    return total


def save(path, step, model, adam, muon):
    velocities = [velocity for _, velocity in muon.groups]
    torch.save([step, model.state_dict(), adam.state_dict(), velocities], path + ".part")
    os.replace(path + ".part", path)


def restore(path, model, adam, muon):
    """Takes up what save left, if anything; returns the number of steps already made."""
    if not path or not os.path.exists(path):
        return 0
    step, weights, adam_state, velocities = torch.load(path)
    model.load_state_dict(weights)
    adam.load_state_dict(adam_state)
    for (_, velocity), saved in zip(muon.groups, velocities):
        velocity.copy_(saved)
    return step


def train(model, tokenizer, chapters, held, options):
    matrices = [w for block in model.blk for w in (m.weight for m in block.children())]
    norms = [w for w in model.parameters() if w.ndim == 1]
    muon = Muon(matrices, options.rate, options.decay)
    adam = torch.optim.AdamW(
        [
            {"params": [model.token_embd.weight], "top": options.embed_rate},
            {"params": norms, "top": 0.003},
        ],
        lr=0.0,
        betas=(0.9, 0.98),
        weight_decay=0.0,
        fused=True,
    )
    stream = pack_stream(tokenizer, chapters, random.Random(1))
    workers = ThreadPoolExecutor(
        options.threads, initializer=torch.set_num_threads, initargs=(1,)
    )
    torch.set_num_threads(1)
    first = restore(options.state, model, adam, muon)
    began, shown, done = time.time(), 0.0, 0.0
    for step in range(options.steps):
        length = take_length(done, options.context)
        inputs, targets = take_batch(stream, options.batch // length, length)
        if step < first:
            done = (step + 1) / options.steps
            continue
        model.train()
        shown += add_gradients(model, inputs, targets, workers)
        scale = schedule(done)
        for group in adam.param_groups:
            group["lr"] = group["top"] * scale
        adam.step()
        muon.step(scale, workers)
        model.zero_grad(set_to_none=True)
        if (step + 1) % 50 == 0:
            spent = time.time() - began
            print(f"step {step + 1} of {options.steps}: loss {shown / 50:.4f}, {spent:.0f} s")
            shown = 0.0
        if options.watch and (step + 1) % options.watch == 0:
            print(f"  held out: {measure(model, held)[0]:.4f} nats a token")
        done = (step + 1) / options.steps
        if options.seconds:
            done = max(done, (time.time() - began) / options.seconds)
        if done >= 1.0:
            print(f"{step + 1} steps, {time.time() - began:.0f} s")
            break
        if options.state and (step + 1) % 25 == 0:
            save(options.state, step + 1, model, adam, muon)
    workers.shutdown()
    torch.set_num_threads(options.threads)


@torch.no_grad()
def measure(model, documents):
    """Mean nats a token over documents, each alone from its BOS to its EOS, and their sum."""
    model.eval()
    total, count = 0.0, 0
    documents = sorted(documents, key=len)
    for start in range(0, len(documents), 16):
        part = documents[start : start + 16]
        longest = max(map(len, part))
        ids = torch.tensor([d + [END_ID] * (longest - len(d)) for d in part])
        valid = torch.tensor([[i < len(d) - 1 for i in range(longest - 1)] for d in part])
        losses = F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:], reduction="none")
        total += losses[valid].sum().item()
        count += int(valid.sum())
    return total / count, total


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


@torch.no_grad()
def beam_search(model, prompt, beams, budget):
    """The best ending of the prompt's ids; score = sum / length (length penalty 1)."""
    model.eval()
    live, pool = [(0.0, [])], []
    for made in range(1, budget + 1):
        ids = torch.tensor([prompt + new for _, new in live])
        scores = F.log_softmax(model(ids)[:, -1], dim=-1)
        scores = scores + torch.tensor([[s] for s, _ in live])
        best = scores.flatten().topk(2 * beams)
        following = []
        for rank, (score, at) in enumerate(zip(best.values.tolist(), best.indices.tolist())):
            new = live[at // scores.shape[1]][1] + [at % scores.shape[1]]
            if new[-1] == END_ID or made == budget:
                if rank < beams:
                    pool = sorted(pool + [(score / made, new)], reverse=True)[:beams]
            elif len(following) < beams:
                following.append((score, new))
        live = following
        if not live or (len(pool) == beams and live[0][0] / made <= pool[-1][0]):
            break
    return pool


def choose_held_out(tokenizer, chapters, context):
    """The held-out documents that fit the context, as text and as ids."""
    text = cut_documents(chapters, random.Random(2))
    pairs = zip(text, encode_documents(tokenizer, text))
    pairs = [(t, ids) for t, ids in pairs if len(ids) - 1 <= context]
    return [t for t, _ in pairs], [ids for _, ids in pairs]


def check(path, chapters, context):
    model, tokenizer = read_gguf(path)
    held_text, held = choose_held_out(tokenizer, chapters, context)
    loss, total = measure(model, held)
    size = sum(len(d.encode()) for d in held_text)
    count = sum(len(d) - 1 for d in held)
    print(f"{path}: {os.path.getsize(path)} bytes, {sum(p.numel() for p in model.parameters())}"
          " weights")
    print(f"held out, from the file's Q8_0 weights: {loss:.4f} nats a token, "
          f"{total / size:.4f} nats a byte ({count} tokens, {size} bytes)")
    for prompt in SAMPLE_PROMPTS:
        ids = [END_ID] + tokenizer.encode(prompt, add_special_tokens=False).ids
        score, new = beam_search(model, ids, 4, 60)[0]
        ended = "" if new[-1] == END_ID else " ..."
        print(f"  [{prompt}]{tokenizer.decode(new)}{ended} ({score:.3f})")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", default="models/builtin.gguf", help="file to write (default %(default)s)")
    add("--check", metavar="FILE", help="train nothing; measure and sample a file written before")
    add("--steps", type=int, default=1000, help="training steps (default %(default)s)")
    add("--batch", type=int, default=2048, help="tokens a step (default %(default)s)")
    add("--context", type=int, default=512, help="trained context (default %(default)s)")
    add("--vocab", type=int, default=2048, help="tokens, bytes and control included")
    add("--width", type=int, default=256, help="embedding length (default %(default)s)")
    add("--layers", type=int, default=4, help="blocks (default %(default)s)")
    add("--heads", type=int, default=4, help="query heads (default %(default)s)")
    add("--kv-heads", type=int, default=2, help="key/value heads (default %(default)s)")
    add("--hidden", type=int, default=448, help="feed-forward length (default %(default)s)")
    add("--rate", type=float, default=0.03, help="Muon's rate (default %(default)s)")
    add("--embed-rate", type=float, default=0.015, help="AdamW's, embedding (default %(default)s)")
    add("--decay", type=float, default=0.03, help="Muon's weight decay (default %(default)s)")
    add("--dropout", type=float, default=0.0, help="in the blocks (default %(default)s)")
    add("--threads", type=int, default=2, help="CPU threads (default %(default)s)")
    add("--seconds", type=float, default=0, help="shorten the schedule to end after this time")
    add("--state", metavar="FILE", help="save progress here and go on from it when it exists")
    add("--watch", type=int, default=0, help="measure the held-out loss every so many steps")
    options = parser.parse_args()

    sys.stdout.reconfigure(line_buffering=True)
    began = time.time()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    kept, held = split_chapters(read_chapters())
    if options.check:
        check(options.check, held, options.context)
        return
    tokenizer = train_tokenizer(kept, options.vocab)
    _, held_ids = choose_held_out(tokenizer, held, options.context)
    shape = Shape(
        options.vocab,
        options.width,
        options.layers,
        options.heads,
        options.kv_heads,
        options.hidden,
    )
    model = Llama(shape, options.dropout)
    print(f"{len(kept)} chapters to train on, {len(held)} held out; "
          f"{sum(p.numel() for p in model.parameters())} weights, {time.time() - began:.0f} s")
    train(model, tokenizer, kept, held_ids, options)
    print(f"held out, float32 weights: {measure(model, held_ids)[0]:.4f} nats a token")
    write_gguf(model, tokenizer, options.out, options.context)
    check(options.out, held, options.context)
    print(f"{time.time() - began:.0f} s in all")


if __name__ == "__main__":
    main()

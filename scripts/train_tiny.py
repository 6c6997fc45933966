#!/usr/bin/env python3
"""Trains the built-in model and writes it as a Q8_0 GGUF file (models/builtin.gguf).

Owns text, byte-level BPE, both phases of the training, and the check of the file written;
tiny_model.py owns the layers, beam search and the file format.

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

Phase one maximises the likelihood of the text. Its most likely texts loop, so phase two adds
sequence-level unlikelihood (Welleck et al. 2020, "Neural text generation with unlikelihood
training"): the model continues prefixes by beam search and greedily, and the tokens of its
continuations that repeat an earlier n-gram cost -log(1 - p), next to the likelihood of the text;
so do those of starts of the text whose last words were said again and again.

The number of steps is fixed and every random choice is seeded, so that two runs on the same
machine, thread count and library versions agree up to the order of floating-point sums.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

from tiny_model import END, END_ID, Llama, Shape, beam_search, read_gguf, write_gguf

HOLD_OUT_EVERY = 40
PIECE = 256  # tokens that one worker takes at a time
SAMPLE_PROMPTS = [
    "",
    "In the beginning",
    "And it came to pass",
    "Blessed is the man",
    "The king said unto him,",
    "The capital of France is",
    "Thou shalt not",
    "Jesus answered and said unto them,",
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


# Phase one


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


def likelihood_losses(model, inputs, targets):
    """The pieces of a batch's mean loss, each a function without arguments."""
    rows = max(1, PIECE // inputs.shape[1])

    def piece(x, y):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
        return loss / inputs.numel()

    return [lambda x=x, y=y: piece(x, y) for x, y in zip(inputs.split(rows), targets.split(rows))]


class Trainer:
    """The optimisers of one phase, the workers, and what a state file holds."""

    def __init__(self, phase, model, options):
        self.phase, self.model, self.path = phase, model, options.state
        matrices = [w for block in model.blk for w in (m.weight for m in block.children())]
        norms = [w for w in model.parameters() if w.ndim == 1]
        self.muon = Muon(matrices, options.rate, options.decay)
        self.adam = torch.optim.AdamW(
            [
                {"params": [model.token_embd.weight], "top": options.embed_rate},
                {"params": norms, "top": 0.003},
            ],
            lr=0.0,
            betas=(0.9, 0.98),
            weight_decay=0.0,
            fused=True,
        )
        self.workers = ThreadPoolExecutor(
            options.threads, initializer=torch.set_num_threads, initargs=(1,)
        )
        torch.set_num_threads(1)
        self.began = time.time()

    def add_gradients(self, losses):
        """Adds the gradients of a sum of losses, which it returns.

        Single-threaded workers take the losses as they come free; the sums are made in the order
        of the losses, so that the result does not depend on which worker took what.
        """
        weights = list(self.model.parameters())

        def work(make_loss):
            loss = make_loss()
            return loss.item(), torch.autograd.grad(loss, weights)

        total = 0.0
        for loss, grads in self.workers.map(work, losses):
            total += loss
            for weight, grad in zip(weights, grads):
                weight.grad = grad if weight.grad is None else weight.grad.add_(grad)
        return total

    def step(self, scale, embed=1.0):
        """One update at scale times the top rates, and embed times that for AdamW's."""
        for group in self.adam.param_groups:
            group["lr"] = group["top"] * scale * embed
        self.adam.step()
        self.muon.step(scale, self.workers)
        self.model.zero_grad(set_to_none=True)

    def save(self, step):
        if self.path:
            velocities = [velocity for _, velocity in self.muon.groups]
            state = [self.phase, step, self.model.state_dict(), self.adam.state_dict(), velocities]
            torch.save(state, self.path + ".part")
            os.replace(self.path + ".part", self.path)

    def restore(self, steps):
        """Takes up what save left, if anything; returns the number of this phase's steps made."""
        if not self.path or not os.path.exists(self.path):
            return 0
        phase, step, weights, adam_state, velocities = torch.load(self.path)
        self.model.load_state_dict(weights)
        if phase != self.phase:
            return steps if phase > self.phase else 0
        self.adam.load_state_dict(adam_state)
        for (_, velocity), saved in zip(self.muon.groups, velocities):
            velocity.copy_(saved)
        return step

    def spent(self):
        return time.time() - self.began

    def close(self, threads):
        self.workers.shutdown()
        torch.set_num_threads(threads)


def train(model, tokenizer, chapters, held, options):
    """Phase one: likelihood alone."""
    trainer = Trainer(1, model, options)
    first = trainer.restore(options.steps)
    if first == options.steps:
        return
    stream = pack_stream(tokenizer, chapters, random.Random(1))
    shown = 0.0
    for step in range(options.steps):
        done = step / options.steps
        length = take_length(done, options.context)
        inputs, targets = take_batch(stream, options.batch // length, length)
        if step < first:
            continue
        model.train()
        shown += trainer.add_gradients(likelihood_losses(model, inputs, targets))
        trainer.step(schedule(done))
        made = step + 1
        if made % 50 == 0:
            print(f"step {made} of {options.steps}: loss {shown / 50:.4f}, {trainer.spent():.0f} s")
            shown = 0.0
        if options.watch and made % options.watch == 0:
            print(f"  held out: {measure(model, held)[0]:.4f} nats a token")
        if made % 25 == 0 or made == options.steps:
            trainer.save(made)
    trainer.close(options.threads)


# Phase two


def choose_prefixes(documents, count, rng):
    """Ids to continue, BOS first: nothing, the book's first words, starts and insides of texts."""
    prefixes = [[END_ID], documents[0][:4]]
    while len(prefixes) < count:
        ids = rng.choice(documents)[1:-1]
        length = rng.randint(1, 10)
        start = 0 if rng.random() < 0.7 else rng.randrange(max(1, len(ids) - length))
        prefixes.append([END_ID] + ids[start : start + length])
    return prefixes


def make_loops(documents, count, rng):
    """Starts of texts and the same with their last 3 to 12 tokens said again up to 64 tokens.

    They teach the rule on every phrase; the model's own repeats alone would move it from one
    favourite phrase to the next.
    """
    starts, loops = [], []
    while len(starts) < count:
        start = rng.choice(documents)[:-1][: rng.randint(4, 40)]
        size = min(rng.randint(3, 12), len(start) - 1)
        starts.append(start)
        loops.append((start + start[-size:] * 20)[:64])
    return starts, loops


def mark_repeats(ids, first, order):
    """1 for each of ids[first:] that belongs to an n-gram seen before in ids, else 0."""
    marks, seen = [0.0] * len(ids), set()
    for end in range(order, len(ids) + 1):
        gram = tuple(ids[end - order : end])
        if gram in seen:
            marks[end - order : end] = [1.0] * order
        seen.add(gram)
    return [0.0] * first + marks[first:]


def continue_texts(trainer, prefixes, beams, budget):
    """Prefixes with the model's own continuations, best first score; the workers share them."""
    size = -(-len(prefixes) // 2)  # whatever the number of workers, so that results agree
    parts = [prefixes[i : i + size] for i in range(0, len(prefixes), size)]
    trainer.model.eval()

    def work(part):
        found = beam_search(trainer.model, part, beams, budget)
        return [prefix + new for prefix, (_, new) in zip(part, found)]

    return [ids for part in trainer.workers.map(work, parts) for ids in part]


def unlikelihood_losses(model, texts, prefixes, order, weight):
    """The pieces of weight * sum of -log(1 - p) over repeats / new tokens, and repeats / new."""
    rows, total, repeats = [], 0, 0.0
    for ids, prefix in sorted(zip(texts, prefixes), key=lambda pair: len(pair[0])):
        body = ids[:-1] if ids[-1] == END_ID else ids
        marks = mark_repeats(body, len(prefix), order)
        total += len(body) - len(prefix)
        repeats += sum(marks)
        if sum(marks) > 0:
            rows.append((body, marks))

    def piece(part):
        longest = max(len(body) for body, _ in part)
        ids = torch.tensor([body + [END_ID] * (longest - len(body)) for body, _ in part])
        marks = torch.tensor([m + [0.0] * (longest - len(m)) for _, m in part])[:, 1:]
        logp = -F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:], reduction="none")
        loss = -torch.log1p(-logp.exp().clamp(max=0.9999))
        return (loss * marks).sum() * (weight / max(1, total))

    parts = [rows[i : i + 3] for i in range(0, len(rows), 3)]
    return [lambda part=part: piece(part) for part in parts], repeats / max(1, total)


def refine(model, tokenizer, chapters, held, options):
    """Phase two: likelihood of the text, unlikelihood of the model's own repeats."""
    trainer = Trainer(2, model, options)
    first = trainer.restore(options.refine_steps)
    stream = pack_stream(tokenizer, chapters, random.Random(3))
    documents = encode_documents(tokenizer, cut_documents(chapters, random.Random(4)))
    shown, looped, length = 0.0, 0.0, options.context // 2
    for step in range(options.refine_steps):
        inputs, targets = take_batch(stream, options.refine_batch // length, length)
        if step < first:
            continue
        prefixes = choose_prefixes(documents, options.texts, random.Random(1000 + step))
        beams = 4 if step % 3 else 1
        texts = continue_texts(trainer, prefixes, beams, options.budget)
        starts, loops = make_loops(documents, options.texts, random.Random(5000 + step))
        cost = (options.order, options.unlikelihood)
        losses, repeats = unlikelihood_losses(model, texts, prefixes, *cost)
        losses += unlikelihood_losses(model, loops, starts, *cost)[0]
        model.train()
        shown += trainer.add_gradients(likelihood_losses(model, inputs, targets))
        looped += repeats
        trainer.add_gradients(losses)
        rise, fall = min(1.0, (step + 1) / 5), 1 - step / options.refine_steps
        trainer.step(options.refine_scale * rise * fall, embed=0.3)
        made = step + 1
        if made % 10 == 0:
            print(f"refining step {made} of {options.refine_steps}: loss {shown / 10:.4f}, "
                  f"repeats {looped / 10:.3f}, {trainer.spent():.0f} s")
            shown = looped = 0.0
        if options.watch and made % options.watch == 0:
            print(f"  held out: {measure(model, held)[0]:.4f} nats a token")
        if made % 10 == 0 or made == options.refine_steps:
            trainer.save(made)
    trainer.close(options.threads)


# Measurement


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
    torch.set_num_threads(1)  # the passes are too small for more
    ended, shares = 0, []
    for prompt in SAMPLE_PROMPTS:
        ids = [END_ID] + tokenizer.encode(prompt, add_special_tokens=False).ids
        score, new = beam_search(model, [ids], 4, 120)[0]
        ended += new[-1] == END_ID
        grams = [tuple(new[i : i + 4]) for i in range(len(new) - 3)]
        shares.append(1 - len(set(grams)) / max(1, len(grams)))
        dots = "" if new[-1] == END_ID else " ..."
        print(f"  [{prompt}]{tokenizer.decode(new)}{dots} ({score:.3f})")
    print(f"beam search: {ended} of {len(shares)} texts end within 120 tokens; "
          f"{sum(shares) / len(shares):.3f} of a text's 4-grams repeat an earlier one")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", default="models/builtin.gguf", help="file to write (default %(default)s)")
    add("--check", metavar="FILE", help="train nothing; measure and sample a file written before")
    add("--steps", type=int, default=1000, help="steps of phase one (default %(default)s)")
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
    add("--refine-steps", type=int, default=100, help="steps of phase two (default %(default)s)")
    add("--refine-batch", type=int, default=1024, help="tokens of text a step in phase two")
    add("--refine-scale", type=float, default=0.15, help="share of the rates in phase two")
    add("--unlikelihood", type=float, default=2.0, help="weight of the loss on repeats")
    add("--order", type=int, default=4, help="tokens of a repeat (default %(default)s)")
    add("--texts", type=int, default=12, help="texts continued a step (default %(default)s)")
    add("--budget", type=int, default=72, help="most new tokens a text (default %(default)s)")
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
    print(f"held out before phase two or its rest: {measure(model, held_ids)[0]:.4f} nats a token, "
          f"{time.time() - began:.0f} s")
    refine(model, tokenizer, kept, held_ids, options)
    print(f"held out, float32 weights: {measure(model, held_ids)[0]:.4f} nats a token")
    write_gguf(model, tokenizer, options.out, options.context)
    check(options.out, held, options.context)
    print(f"{time.time() - began:.0f} s in all")


if __name__ == "__main__":
    main()

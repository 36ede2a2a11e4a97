#!/usr/bin/env python3
"""Distils the draft model in this folder from the model in the folder above it.

The training texts are drawn from that model itself. The draft model learns its distribution
after each token (Hinton, Vinyals and Dean, arXiv:1503.02531), by the Kullback-Leibler
divergence. Its embedding starts as the 128 largest principal directions of the teacher's.

    apt-get install python3-torch libopenblas0-pthread
    python3 models/fable-draft/distill.py

It needs nothing but torch. Its output is the same for the same version of torch and number of
threads.
"""

import argparse
import json
import math
import pathlib
import shutil
import struct
import time

import torch
import torch.nn.functional as F

SHAPE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
WINDOW = 256  # what the teacher was trained on


def read_safetensors(path):
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = torch.frombuffer(data, dtype=torch.bfloat16, offset=8 + size + begin, count=(end - begin) // 2)
        out[name] = raw.reshape(entry["shape"]).float()
    return out


def write_safetensors(path, tensors):
    header, parts, at = {}, [], 0
    for name, tensor in sorted(tensors.items()):
        raw = tensor.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


class Llama:
    """A Llama model over a dictionary of weights with the names of the Hugging Face format."""

    def __init__(self, config, weights):
        self.w, self.layers, self.eps = weights, config["num_hidden_layers"], config["rms_norm_eps"]
        self.heads, self.kv_heads, self.dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        inverse = config["rope_theta"] ** (-torch.arange(0, self.dim, 2).float() / self.dim)
        angles = torch.outer(torch.arange(WINDOW).float(), inverse)
        self.cos, self.sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.w[name + ".weight"]

    def rotate(self, x, start):
        n, half = x.shape[2], self.dim // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * self.cos[start : start + n] + turned * self.sin[start : start + n]

    def hidden(self, tokens, start=0, cache=None):
        """The states after the last layer and its norm, [batch, tokens, hidden]."""
        b, n = tokens.shape
        x = F.embedding(tokens, self.w["model.embed_tokens.weight"])
        for i in range(self.layers):
            p = f"model.layers.{i}."
            h = self.norm(x, p + "input_layernorm")
            split = lambda name, heads: F.linear(h, self.w[p + f"self_attn.{name}_proj.weight"]).view(b, n, heads, self.dim).transpose(1, 2)
            q, k, v = self.rotate(split("q", self.heads), start), self.rotate(split("k", self.kv_heads), start), split("v", self.kv_heads)
            if cache is not None:
                keys, values = cache[i]
                keys[:, :, start : start + n], values[:, :, start : start + n] = k, v
                k, v = keys[:, :, : start + n], values[:, :, : start + n]
            group = self.heads // self.kv_heads  # of heads that share keys and values
            scores = q.reshape(b, self.kv_heads, group * n, self.dim) @ k.transpose(-1, -2) / math.sqrt(self.dim)
            if n > 1:
                scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1).repeat(group, 1), -math.inf)
            mixed = (scores.softmax(-1) @ v).view(b, self.heads, n, self.dim)
            x = x + F.linear(mixed.transpose(1, 2).reshape(b, n, -1), self.w[p + "self_attn.o_proj.weight"])
            h = self.norm(x, p + "post_attention_layernorm")
            gate, up = (F.linear(h, self.w[p + f"mlp.{name}_proj.weight"]) for name in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, self.w[p + "mlp.down_proj.weight"])
        return self.norm(x, "model.norm")

    def logits(self, hidden):
        return F.linear(hidden, self.w["model.embed_tokens.weight"])


@torch.no_grad()
def sample(teacher, config, rows):
    """Texts that the teacher writes, and its states after each token."""
    cache = [[torch.zeros(rows, teacher.kv_heads, WINDOW, teacher.dim) for _ in range(2)] for _ in range(teacher.layers)]
    temperature = torch.linspace(0.3, 1.0, rows)[:, None]
    tokens = torch.full((rows, 1), config["bos_token_id"])
    states = []
    for at in range(WINDOW):
        state = teacher.hidden(tokens[:, -1:], at, cache)[:, 0]
        states.append(state)
        logits = teacher.logits(state) / (temperature if at > 4 else 1.0)
        logits[:, [config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]]] = -math.inf
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], 1)
    return tokens[:, :WINDOW], torch.stack(states, 1)


@torch.no_grad()
def acceptance(teacher, student, tokens, states):
    """How often both draw the same token with the same uniform number, by temperature."""
    ours, theirs = student.logits(student.hidden(tokens)), teacher.logits(states)
    out = {0.0: (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item()}
    uniform = torch.rand(*tokens.shape, 1, dtype=torch.double)
    for temperature in (0.7, 1.0):
        draw = lambda logits: torch.searchsorted((logits.double() / temperature).softmax(-1).cumsum(-1), uniform)
        out[temperature] = (draw(ours) == draw(theirs)).float().mean().item()
    return out


def initial(config, teacher):
    """Weights to begin with."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    embedding = teacher.w["model.embed_tokens.weight"]
    _, _, directions = torch.linalg.svd(embedding - embedding.mean(0), full_matrices=False)
    w = {"model.embed_tokens.weight": embedding @ directions[:hidden].T, "model.norm.weight": torch.ones(hidden) * teacher.w["model.norm.weight"].mean()}
    matrix = lambda out, inputs, scale=1.0: torch.randn(out, inputs) * scale / math.sqrt(inputs)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, heads in (("q", config["num_attention_heads"]), ("k", config["num_key_value_heads"]), ("v", config["num_key_value_heads"])):
            w[p + f"self_attn.{name}_proj.weight"] = matrix(heads * dim, hidden)
        w[p + "self_attn.o_proj.weight"] = matrix(hidden, config["num_attention_heads"] * dim, 0.5)
        for name in ("gate", "up"):
            w[p + f"mlp.{name}_proj.weight"] = matrix(inner, hidden)
        w[p + "mlp.down_proj.weight"] = matrix(hidden, inner, 0.5)
        for name in ("input", "post_attention"):
            w[p + name + "_layernorm.weight"] = torch.ones(hidden)
    return {name: t.clone().requires_grad_() for name, t in w.items()}


def main():
    here = pathlib.Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=512, help="texts of 256 tokens that the teacher writes")
    parser.add_argument("--steps", type=int, default=500, help="steps of training")
    parser.add_argument("--batch", type=int, default=4, help="texts of a step")
    parser.add_argument("--rate", type=float, default=2e-3, help="largest learning rate")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=here, help="folder to write")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)

    source = here.parent / "fable"
    config = json.loads((source / "config.json").read_text())
    teacher = Llama(config, read_safetensors(source / "model.safetensors"))
    began, texts, states = time.process_time(), [], []
    for _ in range(0, args.texts, 128):
        t, s = sample(teacher, config, 128)
        texts.append(t), states.append(s)
    texts, states = torch.cat(texts), torch.cat(states)
    order = torch.randperm(len(texts))
    held, order = order[:32], order[32:]
    print(f"{len(texts)} texts after {time.process_time() - began:.0f} s of processor time", flush=True)

    config.update(SHAPE)
    weights = initial(config, teacher)
    student = Llama(config, weights)

    def divergence(rows):
        target = teacher.logits(states[rows]).log_softmax(-1)
        guess = student.logits(student.hidden(texts[rows])).log_softmax(-1)
        return F.kl_div(guess, target, log_target=True, reduction="none").sum(-1).mean(), (guess.argmax(-1) == target.argmax(-1)).float().mean()

    optimizer = torch.optim.AdamW(weights.values(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min((i + 1) / 50, 0.5 * (1 + math.cos(math.pi * i / args.steps)) + 0.01))
    for step in range(args.steps):
        rows = order[torch.arange(step * args.batch, (step + 1) * args.batch) % len(order)]
        loss, _ = divergence(rows)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            with torch.no_grad():
                kl, same = divergence(held)
            print(f"step {step + 1}: {kl:.3f} nats, the same first choice for {same:.1%}, {time.process_time() - began:.0f} s", flush=True)

    print("acceptance by temperature:", acceptance(teacher, student, texts[held], states[held]))
    args.out.mkdir(parents=True, exist_ok=True)
    write_safetensors(args.out / "model.safetensors", weights)
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(source / name, args.out / name)


if __name__ == "__main__":
    main()

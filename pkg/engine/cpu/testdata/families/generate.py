#!/usr/bin/env python3
"""Writes tiny random checkpoints of every family and what they compute.

The arithmetic is float64 on the checkpoints' bf16 weights, written down from the
papers (RoFormer, GQA, YaRN, Mistral 7B, Qwen technical reports) and from what
Hugging Face's configuration keys mean; nothing of the engine is used. For each
family: config.json, generation_config.json, model.safetensors, expected.json (the
prompt, the greedy continuation, by how much each of its tokens wins, and what
rounding activations to bf16 does to the logits: as they are, and with the layers'
norms rounded before their root is multiplied in) and logits.f32 (float32,
little-endian, [position of the prompt][vocabulary]). frequencies.json holds the rotary embedding's frequencies of published sizes.

    apt-get install python3-numpy && /usr/bin/python3 generate.py
"""
import json
import math
import os
import struct

import numpy as np

VOCABULARY, PROMPT, CONTINUATION = 96, 72, 12


def llama(**keys):
    return dict({"architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
                 "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 56,
                 "max_position_embeddings": 512, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 4,
                 "num_hidden_layers": 2, "num_key_value_heads": 4, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
                 "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
                 "use_cache": True, "vocab_size": VOCABULARY}, **keys)


def mistral(**keys):
    return dict({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
                 "hidden_act": "silu", "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 56,
                 "max_position_embeddings": 512, "model_type": "mistral", "num_attention_heads": 6, "num_hidden_layers": 3,
                 "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 21,
                 "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": VOCABULARY}, **keys)


def qwen2(**keys):
    return dict({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
                 "hidden_act": "silu", "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 56,
                 "max_position_embeddings": 512, "max_window_layers": 2, "model_type": "qwen2", "num_attention_heads": 6,
                 "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
                 "sliding_window": 512, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
                 "use_sliding_window": False, "vocab_size": VOCABULARY}, **keys)


def qwen3(**keys):
    config = dict(qwen2(), architectures=["Qwen3ForCausalLM"], attention_bias=False, head_dim=20, model_type="qwen3",
                  rope_scaling=None, sliding_window=None)
    return dict(config, **keys)


FAMILIES = {
    "llama": llama(),
    "llama-linear": llama(num_key_value_heads=2, rope_scaling={"factor": 4.0, "type": "linear"}),
    "llama-llama3": llama(num_key_value_heads=2, head_dim=12, rope_theta=500000.0, rope_scaling={
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64, "rope_type": "llama3"}),
    "llama-yarn-mscale": llama(num_key_value_heads=1, rope_scaling={
        "beta_fast": 8, "beta_slow": 0.5, "factor": 8.0, "mscale": 2.0, "mscale_all_dim": 0.2,
        "original_max_position_embeddings": 64, "rope_type": "yarn", "truncate": False}),
    "mistral": mistral(),
    "mistral-nemo": mistral(head_dim=10, num_attention_heads=4, sliding_window=None, rope_theta=1000000.0),
    "qwen2": qwen2(),
    "qwen2-window": qwen2(num_hidden_layers=3, max_window_layers=1, sliding_window=16, tie_word_embeddings=False, use_sliding_window=True),
    "qwen2-yarn": qwen2(rope_theta=10000.0, max_position_embeddings=64, rope_scaling={
        "factor": 4.0, "original_max_position_embeddings": 64, "type": "yarn"}),
    "qwen3": qwen3(),
    "qwen3-yarn-window": qwen3(num_attention_heads=4, num_hidden_layers=3, max_window_layers=2, sliding_window=25, use_sliding_window=True, rope_scaling={
        "attention_factor": 1.2, "factor": 2.5, "original_max_position_embeddings": 128, "rope_type": "yarn"}, max_position_embeddings=320),
}


def frequencies(size, theta, scaling):
    """Angles a token of each pair of dimensions, and what multiplies cosines and sines."""
    f = theta ** (-np.arange(0, size, 2) / size)
    if not scaling:
        return f, 1.0
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling["factor"]
    if kind == "linear":
        return f / factor, 1.0
    context = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        waves = context * f / (2 * math.pi)  # in the original context
        smooth = np.clip((waves - low) / (high - low), 0, 1)
        return f * smooth + f / factor * (1 - smooth), 1.0
    assert kind == "yarn"
    turning = [size * math.log(context / (2 * math.pi * turns)) / (2 * math.log(theta))
               for turns in (scaling.get("beta_fast", 32), scaling.get("beta_slow", 1))]
    if scaling.get("truncate", True):
        turning = [math.floor(turning[0]), math.ceil(turning[1])]
    first, last = max(turning[0], 0), min(turning[1], size - 1)
    ramp = np.clip((np.arange(size // 2) - first) / (last - first), 0, 1)
    mscale = lambda scale: 0.1 * scale * math.log(factor) + 1
    attention = mscale(1)
    if "mscale" in scaling:
        attention = mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return f / factor * ramp + f * (1 - ramp), scaling.get("attention_factor", attention)


def windows(config):
    """How many tokens the queries of each layer see, themselves included; None: all."""
    layers, window = config["num_hidden_layers"], config.get("sliding_window")
    if config["model_type"].startswith("qwen"):
        return [window if config["use_sliding_window"] and i >= config["max_window_layers"] else None for i in range(layers)]
    return [window] * layers


def head_size(config):
    return config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])


def random_weights(config, rng):
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], head_size(config)
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    matrix = lambda rows, columns, gain: rng.normal(0, gain / math.sqrt(columns), (rows, columns))
    norm = lambda n: rng.uniform(0.6, 1.4, n)
    w = {"model.embed_tokens.weight": rng.normal(0, 1, (VOCABULARY, hidden))}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        w[at + "input_layernorm.weight"] = norm(hidden)
        for name, rows in ("q", q), ("k", kv), ("v", kv):
            w[f"{at}self_attn.{name}_proj.weight"] = matrix(rows, hidden, 1.2)
            if config["model_type"] == "qwen2":
                w[f"{at}self_attn.{name}_proj.bias"] = rng.normal(0, 0.8, rows)
        if config["model_type"] == "qwen3":
            w[at + "self_attn.q_norm.weight"] = 1.2 * norm(size)
            w[at + "self_attn.k_norm.weight"] = 1.2 * norm(size)
        w[at + "self_attn.o_proj.weight"] = matrix(hidden, q, 1.5)
        w[at + "post_attention_layernorm.weight"] = norm(hidden)
        w[at + "mlp.gate_proj.weight"] = matrix(inner, hidden, 1)
        w[at + "mlp.up_proj.weight"] = matrix(inner, hidden, 1)
        w[at + "mlp.down_proj.weight"] = matrix(hidden, inner, 1)
    w["model.norm.weight"] = norm(hidden)
    if not config["tie_word_embeddings"]:
        w["lm_head.weight"] = matrix(VOCABULARY, hidden, 2)
    else:
        w["model.embed_tokens.weight"] *= 0.2
    return w


def to_bf16(x):
    """Bits of the nearest bf16, ties to even, and its value."""
    bits = x.astype("<f4").view("<u4").astype(np.uint64)
    bits = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
    return bits, (bits.astype("<u4") << 16).view("<f4").astype(np.float64)


def exactly(x):
    return x


def rounded(x):
    return to_bf16(x)[1]


def write_safetensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [len(data), len(data) + bits.nbytes]}
        data += bits.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def root(x, eps):
    return 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def rms_norm(x, weight, eps):
    return x * root(x, eps) * weight


def rotate(x, config):
    """x is [position][head][dimension]; dimension i turns with i + size/2."""
    size = head_size(config)
    f, factor = frequencies(size, config["rope_theta"], config.get("rope_scaling"))
    angle = np.arange(len(x))[:, None, None] * f
    cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
    low, high = x[..., :size // 2], x[..., size // 2:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def attention(x, w, at, config, window, store):
    heads, kv_heads, size = config["num_attention_heads"], config["num_key_value_heads"], head_size(config)
    project = lambda name, n: (x @ w[f"{at}{name}_proj.weight"].T + w.get(f"{at}{name}_proj.bias", 0)).reshape(len(x), n, size)
    q, k, v = project("q", heads), project("k", kv_heads), project("v", kv_heads)
    if at + "q_norm.weight" in w:
        q = rms_norm(q, w[at + "q_norm.weight"], config["rms_norm_eps"])
        k = rms_norm(k, w[at + "k_norm.weight"], config["rms_norm_eps"])
    q, k, v = store(rotate(q, config)), store(rotate(k, config)), store(v)
    k, v = (np.repeat(t, heads // kv_heads, axis=1) for t in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(size)
    query, key = np.indices(scores.shape[1:])
    sees = (key <= query) & (query - key < (window or len(x)))
    scores = np.where(sees, scores, -np.inf)
    p = store(np.exp(scores - scores.max(axis=-1, keepdims=True)))
    mixed = np.einsum("hqk,khd->qhd", p, v) / p.sum(axis=-1).T[..., None]
    return store(mixed).reshape(len(x), heads * size) @ w[at + "o_proj.weight"].T


def logits(tokens, w, config, store=exactly, deferred=False):
    """store is what happens to activations that an engine keeps between two operations.
    If deferred, what it keeps of a layer's norms are rows without their root."""
    x, eps = w["model.embed_tokens.weight"][tokens], config["rms_norm_eps"]
    normed = lambda x, weight: store(x * weight) * root(x, eps) if deferred else store(rms_norm(x, weight, eps))
    for i, window in enumerate(windows(config)):
        at = f"model.layers.{i}."
        x = x + attention(normed(x, w[at + "input_layernorm.weight"]), w, at + "self_attn.", config, window, store)
        n = normed(x, w[at + "post_attention_layernorm.weight"])
        gate, up = n @ w[at + "mlp.gate_proj.weight"].T, n @ w[at + "mlp.up_proj.weight"].T
        x = x + store(gate / (1 + np.exp(-gate)) * up) @ w[at + "mlp.down_proj.weight"].T
    output = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return store(rms_norm(x, w["model.norm.weight"], eps)) @ output.T


def write_json(path, value, **style):
    with open(path, "w") as f:
        f.write(json.dumps(value, **style) + "\n")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    for seed, (name, config) in enumerate(FAMILIES.items()):
        to = os.path.join(here, name)
        os.makedirs(to, exist_ok=True)
        rng = np.random.default_rng(seed)
        bits, w = {}, {}
        for key, x in random_weights(config, rng).items():
            bits[key], w[key] = to_bf16(x)
        prompt = [int(t) for t in rng.integers(3, VOCABULARY, PROMPT)]
        rows, tokens, margins = logits(prompt, w, config), list(prompt), []
        for _ in range(CONTINUATION):
            last = logits(tokens, w, config)[-1]
            best = np.sort(last)
            margins.append(round(float(best[-1] - best[-2]), 4))
            tokens.append(int(np.argmax(last)))
        rounding, rounding_deferred = (
            round(float(np.linalg.norm(logits(prompt, w, config, rounded, deferred) - rows) / np.linalg.norm(rows)), 5) for deferred in (False, True))
        write_json(os.path.join(to, "config.json"), config, indent=2, sort_keys=True)
        write_json(os.path.join(to, "generation_config.json"), {"bos_token_id": 1, "do_sample": True, "eos_token_id": 2, "temperature": 0.6, "top_p": 0.9}, indent=2)
        write_safetensors(os.path.join(to, "model.safetensors"), bits)
        write_json(os.path.join(to, "expected.json"), {"prompt": prompt, "greedy": tokens[PROMPT:], "margins": margins, "rounding": rounding, "rounding_deferred": rounding_deferred})
        rows.astype("<f4").tofile(os.path.join(to, "logits.f32"))
    published = []
    for size, theta, scaling in [
            (64, 10000.0, {"kind": "linear", "factor": 4.0}),
            (128, 500000.0, {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
            (64, 500000.0, {"kind": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
            (128, 1000000.0, {"kind": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
            (128, 10000.0, {"kind": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096}),
            (64, 150000.0, {"kind": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False})]:
        f, factor = frequencies(size, theta, dict(scaling, rope_type=scaling["kind"]))
        published.append({"head_size": size, "theta": theta, "scaling": scaling, "frequencies": f.tolist(), "attention_factor": factor})
    write_json(os.path.join(here, "frequencies.json"), published)


if __name__ == "__main__":
    main()

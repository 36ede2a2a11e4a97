#!/usr/bin/env python3
"""Measures a model by PyTorch and Hugging Face transformers, to compare with.

It builds a Llama of a preset's shape with random weights in bf16 on the device, and
measures prefill of one prompt and decode of several batches behind a context: in eager
mode, by scaled_dot_product_attention and with a cache that grows, as `generate` does
without further options. What it measured is one JSON object on standard output, with the
units of `tandem bench engine --json`.

  pytorch.py --preset bench-8b --device cuda:0 --prompt 4096 --batch 1,8 --context 1024
  pytorch.py --has        exit status 0 if torch and transformers are here
  pytorch.py --describe   the shape of the preset, without either
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time

# As in pkg/model; a test compares them.
SHAPES = {
    "tiny": dict(hidden=64, layers=2, heads=4, kv_heads=2, head_size=16, ffn=160, vocab=512, context=512, tied=False),
    "bench-1b": dict(hidden=2048, layers=16, heads=32, kv_heads=8, head_size=64, ffn=8192, vocab=128256, context=32768, tied=True),
    "bench-8b": dict(hidden=4096, layers=32, heads=32, kv_heads=8, head_size=128, ffn=14336, vocab=128256, context=32768, tied=False),
}

WARM_STEPS = 3  # of decode, which are not counted


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="bench-8b", choices=sorted(SHAPES))
    parser.add_argument("--device", default="cuda:0", help="a GPU such as cuda:0, or cpu to try the script")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of the prompt")
    parser.add_argument("--batch", default="1,8", help="sequences that decode at a time")
    parser.add_argument("--context", type=int, default=1024, help="tokens behind each of them")
    parser.add_argument("--decode", type=int, default=32, help="steps of decode")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--has", action="store_true", help="say by the exit status whether the packages are here")
    parser.add_argument("--describe", action="store_true", help="print the preset's shape and what is measured")
    return parser.parse_args()


def missing():
    """The first package that is not here; None if all are."""
    return next((name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None), None)


def figure(values, best):
    return {"best": best(values), "median": statistics.median(values)}


class Bench:
    """A model with random weights on a device, one forward pass at a time."""

    def __init__(self, shape, device):
        import torch
        import transformers

        self.torch, self.transformers, self.device = torch, transformers, torch.device(device)
        config = transformers.LlamaConfig(
            hidden_size=shape["hidden"], num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"],
            num_key_value_heads=shape["kv_heads"], head_dim=shape["head_size"], intermediate_size=shape["ffn"],
            vocab_size=shape["vocab"], max_position_embeddings=shape["context"],
            tie_word_embeddings=shape["tied"], attn_implementation="sdpa")
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        with self.device:
            self.model = transformers.LlamaForCausalLM(config).eval()
        self.vocab = shape["vocab"]

    def wait(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def name(self):
        return self.torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)

    def tokens(self, batch, count):
        return self.torch.randint(self.vocab, (batch, count), device=self.device)

    def step(self, tokens, cache):
        """The tokens that follow, as one column, of the logits of the last position."""
        out = self.model.model(input_ids=tokens, past_key_values=cache, use_cache=True)
        return self.model.lm_head(out.last_hidden_state[:, -1:]).argmax(-1)

    def cache(self):
        return self.transformers.DynamicCache()

    def prefill(self, count, rounds):
        """Tokens a second of a prompt, one figure a round; the first is not counted."""
        rates = []
        for _ in range(rounds + 1):
            prompt = self.tokens(1, count)
            self.wait()
            began = time.perf_counter()
            self.step(prompt, self.cache())
            self.wait()
            rates.append(count / (time.perf_counter() - began))
        return rates[1:]

    def decode(self, batch, context, steps, rounds):
        """Milliseconds of each step of decode, of all rounds."""
        times = []
        for _ in range(rounds):
            cache = self.cache()
            next_tokens = self.step(self.tokens(batch, context), cache)
            for count in range(WARM_STEPS + steps):
                self.wait()
                began = time.perf_counter()
                next_tokens = self.step(next_tokens, cache)
                self.wait()
                if count >= WARM_STEPS:
                    times.append(1e3 * (time.perf_counter() - began))
        return times


def measure(o):
    bench = Bench(SHAPES[o.preset], o.device)
    decode = []
    with bench.torch.inference_mode():
        prefill = bench.prefill(o.prompt, o.rounds)
        for batch in (int(number) for number in o.batch.split(",")):
            times = bench.decode(batch, o.context, o.decode, o.rounds)
            decode.append({"batch": batch, "context_tokens": o.context, "step_ms": {"min": min(times), "p50": statistics.median(times)}})
    return {
        "by": "torch %s, transformers %s: eager, sdpa, growing cache" % (bench.torch.__version__, bench.transformers.__version__),
        "device": bench.name(), "model": o.preset, "prompt_tokens": o.prompt,
        "prefill": {"tokens_per_s": figure(prefill, max)}, "decode": decode,
    }


def main():
    o = options()
    if o.has:
        sys.exit(0 if missing() is None else 1)
    if o.describe:
        result = {"model": o.preset, "shape": SHAPES[o.preset], "prompt_tokens": o.prompt, "batches": o.batch, "context_tokens": o.context}
    else:
        if missing() is not None:
            sys.exit("there is no %s here: pip install torch transformers" % missing())
        result = measure(o)
    # Without blanks, as the report's patterns want it.
    json.dump(result, sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()

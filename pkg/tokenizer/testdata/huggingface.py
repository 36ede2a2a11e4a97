"""Writes tokenizer cases with the Hugging Face tokenizers library (0.23.2 made
huggingface.jsonl: 250 cases, 60 of each variant).

Usage: huggingface.py tokenizer.json OUTPUT.jsonl CASES CASES_OF_EACH_VARIANT

A line holds variant, text, add_special_tokens, token_ids and decoded (special
tokens skipped), or with decode_only random token_ids, decoded, and
decoded_special (special tokens kept). The first line of each variant carries
what it changes in the file.
"""
import copy
import json
import random
import sys

from tokenizers import Tokenizer

base = json.load(open(sys.argv[1]))
out = open(sys.argv[2], "w")
rng = random.Random(20261120)

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
QWEN = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def pattern(t, regex):
    t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = regex


def byte_level(t, prefix):
    t["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}


def added(t):
    n = 4096
    for content, flags in [
        ("<mask>", {"lstrip": True, "special": True}), ("<right>", {"rstrip": True, "special": True}),
        ("<both>", {"lstrip": True, "rstrip": True}), ("king", {"single_word": True}),
        ("<|end_of", {"special": True}), ("<|end_of_text|><|pad|>", {}), ("norm", {"normalized": True}), ("é", {}),
    ]:
        token = {"id": n, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
        token.update(flags)
        t["added_tokens"].append(token)
        n += 1


VARIANTS = {
    "fable": lambda t: None,
    "gpt2-split": lambda t: pattern(t, GPT2),
    "qwen": lambda t: pattern(t, QWEN),
    "byte-level": lambda t: byte_level(t, False),
    "byte-level-prefix": lambda t: byte_level(t, True),
    "ignore-merges": lambda t: t["model"].update(ignore_merges=True),
    "added": added,
}

WHITE = list(" \t\n\r\v\f\x85\xa0\u1680\u2000\u2003\u2028\u2029\u202f\u205f\u3000") + ["\r\n", "  ", "   ", "\n\n", " \n", "\n "]
ODD = list("\u200b\u200d\ufeff\u180e\x00\x01\x7f\x1c\x1d\x1e\x1f\u0301\u0308\u094d\u0e31\u0e48\ufe0f\U0001f3fd\u20e3")
DIGITS = list("0123456789\u0660\u0661\u0662\u0966\u0967\u2160\u2167\u00b2\u00bd\u2460\u3007\u4e00\U0001d7ce\U00010107\u0bf0")
LETTERS = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") + list("éßñüØſKİıǅʰªºﬁΩωЖжאبกखあア漢字한𝒜𐐀ꙮ")
PUNCT = list("'’‘\"!?.,;:-_/\\()[]{}<>|@#$%^&*+=~`«»…—€©™") + ["'s", "'S", "'ſ", "'T", "'re", "'RE", "'Ve", "'m", "'LL", "'d", "'x", "''s"]
EMOJI = ["😀", "👨‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "1️⃣"]
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>", "<|end_of", "_text|>", "<|", "|>", "<mask>", "<right>", "<both>", "king", "kings", "norm", "é"]
WORDS = ["Once", "upon", "a", "time", "there", "was", "king", "daughters", "don't", "I'LL", "princess", "forest", "THE", "naïve",
         "supercalifragilisticexpialidocious", "don’t", "x2", "3rd", "1,000,000.50", "e.g.", "http://a.b/c?d=e&f#g", "foo_bar",
         "straße", "Привет", "мир", "مرحبا", "שלום", "नमस्ते", "สวัสดี", "こんにちは", "안녕하세요", "你好世界", "ångström"]
HAND = ["", " ", "  ", "\n", "\r\n", "\t\t x", "a  b", "a   b", "a \n b", "a\n\n\nb", "   \n", "\n   ", " \n \n x", "x \r\n\r\n  y",
        "'s", "x's", "x'S y'LL", "x'ſ", "'ſ", "'K", " 's", "!'s", "12345678", "1 22 333 4444", "a1b22c333", "x" * 300, "ab" * 200,
        " " * 200, "\n" * 100, "!?" * 100, "1" * 100, "\x00", "a\x00b", "e\u0301", "\u0301", " \u0301", "a\u200bb", "\ufeffx",
        "\x85x", "\xa0x", " \xa0 x", "\u3000x", "x\u2028y", "<|end_of_text|>", "a<|end_of_text|>b", "<|end_of_text|><|end_of_text|>",
        "<|end_of_text", "<|end_of_text|", "< |end_of_text|>", " <|pad|> ", "<|begin_of_text|>Once", "<|BEGIN_OF_TEXT|>",
        "king", "kings", " king ", "the king's", "king<mask>", "a <mask> b", "a  <right>  b", "  <both>  ", "norm normal", "_king", "king_"]


def character():
    while True:
        c = rng.randrange(rng.choice([0x110000, 0x3000, 0x300]))
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def text():
    pools = rng.choice([
        [WORDS, [" "]], [WORDS, WHITE], [LETTERS, PUNCT], [WHITE], [LETTERS, DIGITS], [WHITE, PUNCT, LETTERS],
        [WHITE, ODD, LETTERS, DIGITS, PUNCT, EMOJI], [SPECIAL, WHITE, WORDS], [SPECIAL], [EMOJI, WHITE], [ODD, WHITE],
        [DIGITS, PUNCT, WHITE], [None], [["'"], LETTERS, WHITE],
    ])
    picked = [rng.choice(pools) for _ in range(rng.choice([1, 2, 3, 5, 8, 20, 60]))]
    return "".join(character() if pool is None else rng.choice(pool) for pool in picked)


for name, change in VARIANTS.items():
    spec = copy.deepcopy(base)
    change(spec)
    note = {k: spec[k] for k in ("pre_tokenizer", "added_tokens") if spec[k] != base[k]}
    if spec["model"]["ignore_merges"]:
        note["ignore_merges"] = True
    t = Tokenizer.from_str(json.dumps(spec))
    for token in note.get("added_tokens", []):
        token["id"] = t.token_to_id(token["content"])  # one that is in the vocabulary keeps its id
    for x in HAND + [text() for _ in range(int(sys.argv[3 if name == "fable" else 4]))]:
        for special in [True, False] if name == "fable" and len(x) < 40 else [False]:
            ids = t.encode(x, add_special_tokens=special).ids
            line = {"variant": name, "text": x, "add_special_tokens": special, "token_ids": ids, "decoded": t.decode(ids, skip_special_tokens=True)}
            if note:
                line["change"], note = note, None
            out.write(json.dumps(line) + "\n")
        if rng.random() < 0.3:
            ids = [rng.randrange(4096) for _ in range(rng.randrange(1, 12))]
            out.write(json.dumps({"variant": name, "decode_only": True, "token_ids": ids,
                                  "decoded": t.decode(ids, skip_special_tokens=True),
                                  "decoded_special": t.decode(ids, skip_special_tokens=False)}) + "\n")
out.close()

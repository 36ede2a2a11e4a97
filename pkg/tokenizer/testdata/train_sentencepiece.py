"""Trains two small BPE models with SentencePiece (0.1.97 of Debian 12 made the files
here) and writes for each a tokenizer.json, made of it as transformers makes one for
Llama 2 and Mistral, and what SentencePiece itself encodes.

Usage: train_sentencepiece.py CORPUS.txt

Writes sentencepiece-{words,digits}.json and .jsonl beside itself. A line of .jsonl
has text and token_ids, without a start token.
"""
import json
import os
import random
import sys
import tempfile

import sentencepiece

here = os.path.dirname(os.path.abspath(__file__))
rng = random.Random(20261121)
SCRIPTS = ("Ein König hatte drei Töchter. Il était une fois une reine. Жил был царь. "
           "むかしむかし ある所に 王様が いました。 从前有一个国王。 옛날 옛적에 왕이 살았어요. كان يا ما كان ")


def tokenizer(pieces, split_digits):
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    scores = {"<unk>": 0.0, "<s>": 0.0, "</s>": 0.0}
    for i, (piece, score) in enumerate(pieces[3:], 3):
        vocab[piece], scores[piece] = i, score
    merges = []
    for piece, score in scores.items():
        local = [(piece[:i], piece[i:], score) for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
        merges += sorted(local, key=lambda m: (vocab[m[0]], vocab[m[1]]))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    added = [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, c in enumerate(["<unk>", "<s>", "</s>"])]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "<s>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocab,
                  "merges": [[a, b] for a, b, _ in merges]},
    }


WHITE = list(" \t\n\r\v\f\x85\xa0\u1680\u2003\u2028\u202f\u3000\u2581") + ["  ", "   ", "\n\n", " \n", " ▁ "]
ODD = list("\u200b\u200d\ufeff\x01\x7f\u0301\u0308\u094d\ufe0f\U0001f3fd\U0010ffff\ue000")
LETTERS = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") + list("éßñüØſKİıǅʰªºﬁΩωЖжאبกखあア漢字한𝒜𐐀ꙮ")
PUNCT = list("'’\"!?.,;:-_/\\()[]{}<>|@#$%^&*+=~`«»…—€©™") + ["'s", "<0x0A>", "<unk", "</s", "<s"]
DIGITS = list("0123456789\u0661\u0967\u2167\u00b2\u00bd\u2460\U0001d7ce")
EMOJI = ["😀", "👨‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "1️⃣"]
WORDS = ["Once", "upon", "a", "time", "there", "was", "king", "daughters", "don't", "princess", "forest", "THE", "naïve", "prefill",
         "decode", "latency", "supercalifragilisticexpialidocious", "x2", "1,000,000.50", "http://a.b/c?d=e&f#g", "foo_bar", "straße",
         "König", "царь", "王様", "国王", "옛날", "كان", "नमस्ते", "สวัสดี"]
HAND = ["", " ", "  ", "   ", "\n", "\r\n", "a", " a", "  a", "a ", "a  ", "a  b", "a   b", "▁", "▁a", "a▁b", " ▁ ", "\t\tx", "a\nb", "\na",
        "a" * 300, "ab" * 200, " " * 200, "e" * 100 + " " + "e" * 99, "the" * 90, "1" * 60, "é" * 80, "王" * 60, "😀" * 30, "aaaaaaab", "\x7f",
        "e\u0301", "\u0301", "hello<", "<0x41>", "¿Qué?", "ﬁ ﬂ"]


def character():
    while True:
        c = rng.randrange(1, rng.choice([0x110000, 0x3000, 0x300]))
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def text():
    pools = rng.choice([[WORDS, [" "]], [WORDS, [" "]], [WORDS, WHITE], [LETTERS, PUNCT], [WHITE], [LETTERS, DIGITS], [WHITE, PUNCT, LETTERS],
                        [WHITE, ODD, LETTERS, DIGITS, PUNCT, EMOJI], [EMOJI, WHITE], [ODD, WHITE], [None], [LETTERS, [" "]], [["e", "t", "h", " "]]])
    picked = [rng.choice(pools) for _ in range(rng.choice([1, 2, 3, 5, 8, 20, 60]))]
    made = "".join(character() if pool is None else rng.choice(pool) for pool in picked)
    return text() if any(c in made for c in ["<unk>", "<s>", "</s>"]) else made  # those are added tokens in a tokenizer.json only


for name, split_digits, coverage in [("words", False, 0.9995), ("digits", True, 0.98)]:
    with tempfile.TemporaryDirectory() as scratch:
        corpus = os.path.join(scratch, "corpus.txt")
        with open(corpus, "w") as f:
            f.write(open(sys.argv[1]).read() + "\n" + (SCRIPTS + "\n") * 3)
        sentencepiece.SentencePieceTrainer.train(
            input=corpus, model_prefix=os.path.join(scratch, "m"), model_type="bpe", vocab_size=700, byte_fallback=True,
            split_digits=split_digits, character_coverage=coverage, normalization_rule_name="identity", remove_extra_whitespaces=False,
            add_dummy_prefix=True, allow_whitespace_only_pieces=True, hard_vocab_limit=False, num_threads=1, max_sentence_length=100000)
        sp = sentencepiece.SentencePieceProcessor(model_file=os.path.join(scratch, "m.model"))
    pieces = [(sp.id_to_piece(i), sp.get_score(i)) for i in range(sp.get_piece_size())]
    with open(os.path.join(here, f"sentencepiece-{name}.json"), "w") as f:
        json.dump(tokenizer(pieces, split_digits), f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    with open(os.path.join(here, f"sentencepiece-{name}.jsonl"), "w") as f:
        for x in HAND + [text() for _ in range(400)]:
            f.write(json.dumps({"text": x, "token_ids": sp.encode(x)}, ensure_ascii=False) + "\n")

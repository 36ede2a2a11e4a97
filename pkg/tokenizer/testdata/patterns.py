"""Writes how Python's regex module cuts random texts by the patterns of patterns.go
(2.5.123, that is 2022.10.31, with Unicode 15.0, made patterns.jsonl).

Usage: patterns.py ../patterns.go OUTPUT.jsonl TEXTS

The first line is the list of the patterns. Each other line holds a text
and, for each pattern in that order, the lengths of the pieces in characters; an
entry that equals one before it is the number of that one. Characters are those
assigned in Unicode 15.0.
"""
import json
import random
import re
import sys

import regex

patterns = re.findall(r"^\tpattern\w+ += `(.*)`$", open(sys.argv[1], encoding="utf-8").read(), re.M)
compiled = [regex.compile(p) for p in patterns]
assigned = regex.compile(r"[^\p{Cn}\p{Cs}]")
rng = random.Random(20261121)

CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Cc", "Cf"]
members = {c: [] for c in CATEGORIES}
for code in range(0x110000):
    char = chr(code)
    if not assigned.match(char):
        continue
    for c in CATEGORIES:
        if regex.match(r"\p{%s}" % c, char):
            members[c].append(char)
            break

WHITE = list(" \t\n\r\v\f\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000") + ["\r\n", "  ", "\n\n", " \n"]
WORDS = ["Once", "upon", "I'LL", "don't", "we'Ve", "'s", "'S", "'ſ", "'re", "'x", "12345", "a1B2", "iPhone", "HTTPServer", "//", "/\n", "!?", "...\n"]


def piece(kind):
    if kind == "white":
        return rng.choice(WHITE)
    if kind == "word":
        return rng.choice(WORDS)
    if kind == "any":
        return rng.choice(members[rng.choice(CATEGORIES)])
    return rng.choice(members[kind])


def text():
    kinds = rng.choice([["any"], ["any", "white"], ["any", "white", "word"], ["word", "white"], ["white"],
                        ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc"], ["Nd", "Nl", "No", "white"], ["Lu", "Ll", "word", "Me", "white"]])
    return "".join(piece(rng.choice(kinds)) for _ in range(rng.choice([2, 4, 8, 12, 16])))


with open(sys.argv[2], "w", encoding="utf-8") as out:
    out.write(json.dumps(patterns) + "\n")
    for _ in range(int(sys.argv[3])):
        x = text()
        cuts = []
        for p in compiled:
            pieces = p.findall(x)
            assert "".join(pieces) == x, (p.pattern, x)
            lengths = [len(piece) for piece in pieces]
            cuts.append(cuts.index(lengths) if lengths in cuts else lengths)
        out.write(json.dumps([x, cuts], ensure_ascii=True, separators=(",", ":")) + "\n")

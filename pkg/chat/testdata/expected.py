#!/usr/bin/env python3
"""Writes expected.jsonl and snippets.jsonl: what Jinja2 makes of the templates here.

Jinja2 is set up as transformers sets it up for chat templates. Run it here, with
Debian's python3-jinja2, after a change to a template or to conversations.json.
"""
import copy
import datetime
import glob
import json
import os

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = datetime.datetime(2026, 3, 7, 9, 5, 4)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
MARK = "CONTINUE_FINAL_MESSAGE_TAG "


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_inside")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _inside(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def prompt(source, c):
    messages, goes_on = copy.deepcopy(c["messages"]), c.get("continue", False)
    if goes_on:
        messages[-1]["content"] += MARK
    if "tool_calls" not in source:  # one that knows of no calls gets an empty text for no content
        for m in messages:
            m["content"] = m["content"] or ""
    for m in messages:  # those who call transformers with OpenAI's messages read the arguments first
        for call in m.get("tool_calls", []):
            f = call["function"]
            if isinstance(f["arguments"], str):
                f["arguments"] = json.loads(f["arguments"])
    out = environment().from_string(source).render(
        messages=messages, tools=c.get("tools"), documents=None, add_generation_prompt=not goes_on,
        **TOKENS, **c.get("arguments", {}))
    if not goes_on:
        return out
    at = out.rindex(MARK.strip())
    return out[:at] if out[at:].startswith(MARK) else out[:at].rstrip()


def attempt(make):
    """The result, or that there is none: errors' words are Python's own."""
    try:
        return {"output": make()}
    except Exception:
        return {"error": True}


def main():
    with open("conversations.json") as f:
        conversations = json.load(f)
    with open("expected.jsonl", "w") as f:
        for path in sorted(glob.glob("templates/*.jinja")):
            source = open(path).read()
            for c in conversations:
                line = {"template": os.path.basename(path), "conversation": c["name"], **attempt(lambda: prompt(source, c))}
                f.write(json.dumps(line, ensure_ascii=False) + "\n")
    with open("snippets.json") as f:
        snippets = json.load(f)
    with open("snippets.jsonl", "w") as f:
        for source in snippets["templates"]:
            made = attempt(lambda: environment().from_string(source).render(**snippets["variables"]))
            f.write(json.dumps({"template": source, **made}, ensure_ascii=False) + "\n")


main()

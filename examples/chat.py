"""Asks a model over OpenAI's API and prints the answer as it comes.

    python3 examples/chat.py "Tell me of a king."

Needs nothing but Python. Programs that use OpenAI's package need no change but
OPENAI_BASE_URL.
"""

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request

URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1")
KEY = os.environ.get("OPENAI_API_KEY", "any")
MODEL = os.environ.get("OPENAI_MODEL", "fable")
TRIES = 4


def open_stream(body):
    """Sends a request, again while the server is full and says when to come back."""
    request = urllib.request.Request(
        URL + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + KEY},
    )
    for tries_left in reversed(range(TRIES)):
        try:
            return urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as refused:
            if refused.code not in (429, 503) or tries_left == 0:
                message = refused.read().decode(errors="replace")
                try:
                    message = json.loads(message)["error"]["message"]
                except (ValueError, KeyError, TypeError):
                    pass
                sys.exit(f"{refused.code}: {message}")
            time.sleep(float(refused.headers.get("Retry-After-Ms", 1000)) / 1000)
        except (OSError, http.client.HTTPException):
            sys.exit(f"no answer from {URL}: start a mesh with 'tandem up', or set OPENAI_BASE_URL")


def events(stream):
    """The objects of a stream of server-sent events."""
    try:
        for line in stream:
            data = line.decode().strip()
            if data == "data: [DONE]":
                return
            if data.startswith("data: "):
                yield json.loads(data[len("data: "):])
    except (OSError, http.client.HTTPException):
        pass
    sys.exit("\nthe answer broke off")


def main():
    prompt = " ".join(sys.argv[1:]) or "Tell me of a king."
    usage = {}
    with open_stream({
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 60,
        "stream": True,
        "stream_options": {"include_usage": True},
    }) as stream:
        for event in events(stream):
            if "error" in event:  # after the first token a request fails here
                sys.exit(f"\n{event['error']['message']}")
            for choice in event["choices"]:
                print(choice["delta"].get("content") or "", end="", flush=True)
            usage = event.get("usage") or usage
    print(f"\n[{usage['prompt_tokens']} prompt tokens, {usage['completion_tokens']} in the answer]", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # nobody reads the answer any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at the end
        sys.exit(1)

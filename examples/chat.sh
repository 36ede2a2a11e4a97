#!/usr/bin/env bash
# Asks a model over OpenAI's API and prints the answer as it comes.
#
#     bash examples/chat.sh "Tell me of a king."
#
# Needs curl 7.76 or later, and jq. Where the server is full (429, 503) it says when to
# come back, and curl obeys.
set -euo pipefail

url=${OPENAI_BASE_URL:-http://127.0.0.1:8080/v1}

jq --null-input --arg model "${OPENAI_MODEL:-fable}" --arg prompt "${*:-Tell me of a king.}" '{
  $model, messages: [{role: "user", content: $prompt}], max_tokens: 60,
  stream: true, stream_options: {include_usage: true}
}' |
  curl --silent --show-error --no-buffer --fail-with-body --retry 3 --max-time 60 \
    --header "Authorization: Bearer ${OPENAI_API_KEY:-any}" --header "Content-Type: application/json" \
    --data @- "$url/chat/completions" |
  # An error is the whole body of a request that is refused, or, after the first token,
  # the last event.
  jq --raw-input --join-output --unbuffered '
    select(startswith("data: {") or startswith("{")) | ltrimstr("data: ") | fromjson |
    if .error then .error.message + "\n"
    else (.choices[].delta.content // empty), (.usage // empty | "\n[\(.prompt_tokens) prompt tokens, \(.completion_tokens) in the answer]\n")
    end'

#!/usr/bin/env bash
# Asks a model over OpenAI's API and prints the answer as it comes.
#
#     bash examples/chat.sh "Tell me of a king."
#
# Needs curl 7.76 or later, and jq. Where the server is full (429, 503) it says when to
# come back, and curl obeys.
set -euo pipefail

url=${OPENAI_BASE_URL:-http://127.0.0.1:8080/v1}

# no_answer says what a status of curl means, but for 22: then the server says what is wrong,
# and for 23: then nobody reads the answer any more.
no_answer() {
  case $1 in
    22 | 23) ;;
    18 | 28 | 56) echo "the answer broke off" >&2 ;;
    *) echo "no answer from $url: start a mesh with 'tandem up', or set OPENAI_BASE_URL" >&2 ;;
  esac
  return "$1"
}

jq --null-input --arg model "${OPENAI_MODEL:-fable}" --arg prompt "${*:-Tell me of a king.}" '{
  $model, messages: [{role: "user", content: $prompt}], max_tokens: 60,
  stream: true, stream_options: {include_usage: true}
}' |
  { curl --silent --no-buffer --fail-with-body --retry 3 --max-time 60 \
    --header "Authorization: Bearer ${OPENAI_API_KEY:-any}" --header "Content-Type: application/json" \
    --data @- "$url/chat/completions" || no_answer $?; } |
  # An error is the whole body of a request that is refused, or, after the first token,
  # the last event. It is printed at the end (null), unless curl tries again and an answer comes.
  jq --null-input --raw-input --join-output --unbuffered '
    foreach ((inputs | select(startswith("data: {") or startswith("{")) | ltrimstr("data: ") | fromjson), null) as $event (
      null;
      if $event then $event.error else . end;
      if $event.error then empty
      elif $event then ($event.choices[].delta.content // empty), ($event.usage // empty | "\n[\(.prompt_tokens) prompt tokens, \(.completion_tokens) in the answer]\n")
      else .message // empty | . + "\n" end)'

#!/usr/bin/env bash
# Makes the tables of docs/benchmarks.md and docs/images/modes.png: aggregated and disaggregated serving
# and mode auto at equal rates on this machine, which has to do nothing else for ten minutes.
# `make latency` calls it. Arguments go to bench modes instead of those below, as in
# `tools/record/modes.sh --rates=15,35 --duration 5s`. What the page says of the figures is for its
# reader to write again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/record/browser.sh || echo "docs/images/modes.png stays as it is" >&2

[[ $# -gt 0 ]] || set -- --rates=15,35,45,60,80 --rounds 3 --duration 13s --warmup 2s --prompt-tokens 256 --output-tokens 64 --slo "ttft:p90<100ms,tpot:p90<5ms"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -ldflags "$(tools/version --ldflags)" -o "$work/tandem" ./cmd/tandem
"$work/tandem" bench modes "$@" --report "$work/modes.html" --markdown "$work/modes.md" >/dev/null

# The command is the reader's: the page names no temporary folder.
sed -i -E 's# --(report|markdown) [^ ]*/(modes\.(html|md))# --\1 \2#g' "$work/modes.md"
awk -v tables="$work/modes.md" '
  /<!-- end of make latency -->/ { within = 0 }
  !within { print }
  /<!-- made by make latency -->/ { within = 1; print ""; while ((getline line < tables) > 0) print line }
' docs/benchmarks.md >"$work/benchmarks.md"
grep -q 'made by make latency' "$work/benchmarks.md" || { echo "docs/benchmarks.md has no place for the tables" >&2; exit 1; }
cp "$work/benchmarks.md" docs/benchmarks.md
echo "made docs/benchmarks.md"
if [[ -n $browser ]]; then
  picture "$work/modes.html" "${HEIGHT:-1560}" "$work/modes.png"
  cp "$work/modes.png" docs/images/modes.png
  echo "made docs/images/modes.png"
fi

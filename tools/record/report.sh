#!/usr/bin/env bash
# Makes docs/images/report.png: sweeps the bundled model on this machine, then takes a
# picture of the top of the report in a browser of Chromium's kind. `make picture` calls
# it. Takes about ten minutes, and a machine that does nothing else.
#
# The client needs a hundredth of the cores, but needs it at once: it runs with a real-time
# priority where that is allowed (as root), since it would send late whenever the workers
# compute. MESH is put before the mesh's command, such as "nice -n -5"; PORT is where the
# router listens meanwhile; arguments go to bench serve, as in
# `tools/record/report.sh --sweep=5,10,20 --duration 10s`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

[[ $# -gt 0 ]] || set -- --sweep --slo "ttft:p99<200ms,tpot:p99<10ms" --prompt-tokens 256 --output-tokens 64
source tools/record/browser.sh
client=
if chrt --fifo 1 true 2>/dev/null; then
  client="chrt --fifo 1"
fi

work=$(mktemp -d)
mesh=
trap '[[ -z $mesh ]] || { kill -INT "$mesh" && wait "$mesh" || true; }; rm -rf "$work"' EXIT
go build -o "$work/tandem" ./cmd/tandem

address=127.0.0.1:${PORT:-17070}
mkfifo "$work/says"
${MESH:-} "$work/tandem" up --listen "$address" --http "" --metrics "" --control "" >"$work/says" &
mesh=$!
exec 3<"$work/says"
while read -r -t 120 line <&3; do
  [[ $line == ready ]] && break
done
if [[ ${line:-} != ready ]]; then
  echo "the mesh did not say that it is ready" >&2
  exit 1
fi
$client "$work/tandem" bench serve --addr "$address" --report "$work/report.html" --name "The bundled model, swept" "$@"

picture "$work/report.html" "${HEIGHT:-815}" "$work/report.png"
mv "$work/report.png" docs/images/report.png
[[ -z ${KEEP:-} ]] || cp "$work/report.html" "$KEEP"
echo "made docs/images/report.png"

# shellcheck shell=bash
# Sourced: picture PAGE HEIGHT FILE takes a picture, 1200 wide, of the top of an HTML page in a
# browser of Chromium's kind, which TANDEM_BROWSER may name. Without one sourcing it fails.
for browser in "${TANDEM_BROWSER:-}" chromium chromium-browser google-chrome; do
  [[ -n $browser ]] && command -v "$browser" >/dev/null && break
  browser=
done
if [[ -z $browser ]]; then
  echo "no browser: install chromium, or name one of its kind in TANDEM_BROWSER" >&2
  return 1
fi

picture() {
  local profile
  profile=$(mktemp -d)
  # A message bus that is named but does not answer costs the browser 25 seconds.
  DBUS_SESSION_BUS_ADDRESS=disabled: DBUS_SYSTEM_BUS_ADDRESS=disabled: "$browser" --headless=new --no-sandbox --disable-gpu \
    --hide-scrollbars --user-data-dir="$profile" --window-size=1200,"$2" --screenshot="$3" "file://$1" 2>/dev/null
  rm -rf "$profile"
}

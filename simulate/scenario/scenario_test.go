package scenario_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/simulate"
	"github.com/tandem-serving/tandem/simulate/scenario"
)

// load are flags such as the command has, parsed from its command line.
func load(t testing.TB, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	var spec workload.Spec
	spec.RegisterFlags(fs)
	fs.Float64("rate", 0, "")
	fs.Int("concurrency", 0, "")
	fs.Duration("duration", time.Second, "")
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

// lines of a scenario that is good.
func lines(more ...string) string {
	return strings.Join(append([]string{
		"model: tiny", // 1
		"pools: {p: {role: prefill, count: 2}, d: {role: decode, count: 3}}", // 2
		"traffic: {rate: 10}", // 3
	}, more...), "\n")
}

func TestRead(t *testing.T) {
	fs := load(t, "--rate=7", "--output-tokens=9")
	s, err := scenario.Parse("s.yaml", []byte(lines("seed: 5", "routers: 2", "block-tokens: 16",
		"router: {queue-limit: 12, max-attempts: 5}",
		"network: {latency: 1ms, bandwidth: 1GB/s, pairs: [{between: [p-1, d-*], latency: 2ms}], links: [{between: [[p-1, p-2], [d-1, router-*]], bandwidth: 3GB/s}]}",
		"events:",
		"- {at: 3s, slow: d-2, factor: 3, for: 2s, unmeasured: true}",
		"- {at: 1s, kill: [p-1, d-3]}",
		"- {at: 2s, scale: d, to: 5}",
		"- {at: 4s, rate-times: 2, for: 10s}",
		"- {at: 6s, cut: [p-1, d-1], for: 1s}",
	)), fs)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"rate": "7", "output-tokens": "9", "seed": "5", "surge": "4s+10s=2"} {
		if got := fs.Lookup(name).Value.String(); got != want {
			t.Errorf("--%s is %s, want %s", name, got, want)
		}
	}
	c := s.Config(3)
	var ids []string
	for _, w := range c.Workers {
		id := w.ID
		if w.Down {
			id += " down"
		}
		ids = append(ids, id)
	}
	if diff := cmp.Diff([]string{"p-1", "p-2", "d-1", "d-2", "d-3", "d-4 down", "d-5 down"}, ids); diff != "" {
		t.Error(diff)
	}
	if s.Workers() != 5 || c.Seed != 3 || c.Routers != 2 || c.BlockTokens != 16 || c.Routing.QueueLimit != 12 || c.Limits.MaxAttempts != 5 {
		t.Errorf("%d workers, %+v", s.Workers(), c)
	}
	// As live workers have it: --prefill-chunk-tokens, --decode-chunk-tokens, --max-sequences.
	if p, d := c.Workers[0], c.Workers[2]; p.ChunkTokens != 512 || d.ChunkTokens != 256 || d.OutputShare != 1 || d.MaxSequences != 64 || d.Blocks == 0 {
		t.Errorf("prefill %+v, decode %+v", p, d)
	}
	one, five := simulate.Hosts{"p-1"}, simulate.Hosts{"d-1"}
	wantEvents := []simulate.Event{
		{At: time.Second, Do: simulate.Kill{Worker: "p-1"}}, {At: time.Second, Do: simulate.Kill{Worker: "d-3"}},
		{At: 2 * time.Second, Do: simulate.Scale{Pool: "d", To: 5}},
		{At: 3 * time.Second, Do: simulate.Slow{Worker: "d-2", Factor: 3, Unmeasured: true}}, {At: 5 * time.Second, Do: simulate.Slow{Worker: "d-2", Factor: 1}},
		{At: 6 * time.Second, Do: simulate.Cut{Between: [2]simulate.Hosts{one, five}}}, {At: 7 * time.Second, Do: simulate.Heal{Between: [2]simulate.Hosts{one, five}}},
	}
	if diff := cmp.Diff(wantEvents, c.Events); diff != "" {
		t.Error(diff)
	}
	wantNetwork := simulate.Network{
		Latency: time.Millisecond, LocalLatency: 10 * time.Microsecond, BytesPerSecond: 1e9,
		Pairs: []simulate.Pair{{Between: [2]simulate.Hosts{one, {"d-1", "d-2", "d-3", "d-4", "d-5"}}, Latency: 2 * time.Millisecond}},
		Links: []simulate.Link{{Between: [2]simulate.Hosts{{"p-1", "p-2"}, {"d-1", "router-1", "router-2"}}, BytesPerSecond: 3e9}},
	}
	if diff := cmp.Diff(wantNetwork, c.Network); diff != "" {
		t.Error(diff)
	}
	c.Workers[0].Slow = 9
	if again := s.Config(3); again.Workers[0].Slow != 0 {
		t.Error("two clusters share a worker")
	}
}

// What is wrong is told in one line, with its place and what to do.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "other.json"))
	if err != nil {
		t.Fatal(err)
	}
	profile := latency.Model{BaseMs: 1}.Profile()
	profile.Model = "llama"
	if err := profile.Write(file); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	old := latency.Model{BaseMs: 1}.Profile()
	old.Verify = nil // what guesses cost
	var text strings.Builder
	if err := old.Write(&text); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "old.json"), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := func(line string) string { return lines(line) }
	pool := func(fields string) string {
		return "model: tiny\npools:\n  d: {role: decode}\n  p: {" + fields + "}\ntraffic: {rate: 1}"
	}
	for _, test := range []struct{ text, want string }{
		{"", `:1: the scenario is empty`},
		{"- 1", `:1: a scenario must have keys and values`},
		{"model: [", `not YAML: `},
		{"model: tiny\n---\nmodel: tiny", `more than one document`},
		{"pools: {}", `:1: the model is missing: add "model: bench-8b"`},
		{"model: bench-8x\npools: {}", `:1: there is no preset "bench-8x": did you mean "bench-8b"?`},
		{"model: nothing-like-it", `:1: no preset`},
		{"model: ./nowhere", `:1: `},
		{"model: {layers: 3}", `:1: "model.hidden-size" is missing`},
		{"model: {layers: -3}", `:1: "model.layers" is -3: want a whole number from 1 to 1000`},
		{"model: tiny", `:1: there are no workers: add "pools: {`},
		{"model: tiny\npools: {d: {role: decode}}", `:1: the traffic is missing: add "traffic: {rate: 10}"`},
		{"model: tiny\npools: {p: {role: prefill}}\ntraffic: {rate: 1}", `:2: there is no decode worker`},
		{"model: tiny\npools: {p: {role: decode}, p: {role: decode}}", `:2: "pools.p" is set a second time, line 2 sets it already`},
		{"model: tiny\npools: {d: &d {role: decode}, e: *d}", `:2: "pools.e" refers to another value`},
		{"modell: x", `:1: unknown key "modell": did you mean "model"?`},
		{bad("event: []"), `:4: unknown key "event": did you mean "events"?`},
		{bad("zzz: 1"), `:4: unknown key "zzz": the keys here are acceptance, autoscale, block-tokens, events, model, network, pools`},
		{bad("seed:"), `:4: "seed" has no value`},
		{bad("seed: -1"), `:4: "seed" is -1: want a whole number above 0`},
		{bad("routers: 100000"), `:4: "routers" is 100000: want a whole number from 1 to 64`},
		{bad("router: {queue-limt: 3}"), `:4: unknown key "router.queue-limt": did you mean "router.queue-limit"?`},
		{bad("router:\n  queue-limit: -3"), `:5: queue-limit is -3: it must be above 0`},
		{bad("router: {max-queue-wait: 30}"), `:4: "router.max-queue-wait" is 30: write a number and a unit, such as 30s`},
		{bad("router: {queue-limit: many}"), `:4: "router.queue-limit" is many: want a whole number`},
		{bad("network: {latency: 5}"), `:4: "network.latency" is 5: write a number and a unit`},
		{bad("network: {latency: -5ms}"), `:4: "network.latency" is -5ms: want a time from 0s to 1m0s`},
		{bad("network: {bandwidth: 100Gbit/s}"), `:4: "network.bandwidth": "100Gbit/s" is not a bandwidth: write 10GB/s`},
		{bad("network: {links: [{between: [p-1, d-9], bandwidth: 1GB/s}]}"), `:4: "network.links.between": there is no host or worker "d-9": did you mean "d-1"?`},
		{bad("network: {links: [{between: [p-1, d-1]}]}"), `:4: a link needs a bandwidth`},
		{bad("network: {pairs: [{between: p-1}]}"), `:4: "network.pairs.between" needs two groups of hosts`},
		{bad("profile: {file: other.json, base-ms: 1}"), `:4: profile has both a file and times`},
		{bad("profile: nowhere.json"), `:4: read profile: `},
		{bad("profile: other.json"), `:4: other.json is a profile of llama, but the model is tiny: profile that with 'tandem profile'`},
		{bad("profile: {base-ms: 0, per-token-ms: 0, per-context-token-ms: 0}"), `:4: profile has steps that take no time`},
		{bad("profile: {tensor-parallel: 3, base-ms: 5}"), `:4: profile has times of its own: entry, tensor-parallel and model go with a file`},
		{bad("profile:\n  file: other.json\n  tensor-parallel: 3"), `:6: "profile.tensor-parallel" goes with an entry`},
		{bad("profile: {file: other.json, entry: a, model: b}"), `:4: profile has both an entry and a model`},
		{bad("profile: {base-ms: -1}"), `:4: "profile.base-ms" is -1: want a number from 0`},
		{bad("profile: {base-ms: .nan}"), `:4: "profile.base-ms" is .nan: want a number`},
		{bad("block-tokens: 0"), `:4: --block-tokens: 0 is outside 1 to 1024`},
		{pool("count: 3"), `:4: the role of pool p is "": want prefill, decode or store`},
		{pool("rol: prefill, count: 2"), `:4: unknown key "pools.p.rol": did you mean "pools.p.role"?`},
		{pool("role: prefil"), `:4: the role of pool p is "prefil"`},
		{pool("role: prefill, count: 1e9"), `:4: "pools.p.count" is 1e9: want a whole number from 0 to 10000`},
		{pool("role: prefill, slow: 0"), `:4: "pools.p.slow" is 0: want a number from 0.0001 to 10000`},
		{pool("role: prefill, stores: 1"), `:4: unknown key "pools.p.stores"`},
		{pool("role: prefill, store-puts: -1"), `:4: store-puts and fetch-bandwidth of pool p must not be negative`},
		{pool("role: decode, store-puts: 1"), `:4: unknown key "pools.p.store-puts": the keys here are`},
		{pool("role: store, memory: 1KiB"), `:4: "pools.p.memory" is 1KiB: one block of this model takes`},
		{pool("role: store, max-puts: 0"), `:4: "pools.p.max-puts" is 0: want 1 to 65536`},
		{pool("role: store, kv-memory: 1GiB"), `:4: unknown key "pools.p.kv-memory"`},
		{pool("role: store") + "\nautoscale: {p: 1..2}", `:6: "autoscale.p": a pool of block stores does not follow the load`},
		{pool("role: prefill, chunk-tokens: 33"), `:4: chunk-tokens: 33 is not a positive multiple of the block size 32`},
		{pool("role: decode, output-share: 3"), `:4: output-share: 3 is not above 0 and at most 1`},
		{pool("role: decode, kv-memory: 1KiB"), `:4: --kv-memory: 1KiB does not hold one block`},
		{pool("role: decode, max-sequences: 0"), `:4: --max-sequences: 0 is outside 1 to 4096`},
		{pool("role: decode, transfer-lease: 1ms"), `:4: "pools.p.transfer-lease" is 1ms: want 1s or more`},
		{pool("role: decode, hosts: [a, b], per-host: 3"), `:4: pool p has both hosts and per-host`},
		{"model: tiny\npools: {\"a b\": {role: decode}}", `:2: "a b" cannot be the name of a pool`},
		{"model: tiny\npools:\n  d: {role: decode}\n  router: {role: prefill}", `:4: "router" cannot be the name of a pool: router-1 and so on are the routers`},
		{"model: tiny\npools:\n  d-host: {role: decode}\n  d: {role: prefill, per-host: 2}", `:3: "d-host" cannot be the name of a pool beside d: d-host-1 and so on are hosts of d`},
		{"model: tiny\npools: {d: {role: decode}}\ntraffic:\n  rat: 1", `:4: unknown key "traffic.rat": did you mean "traffic.rate"?`},
		{"model: tiny\npools: {d: {role: decode}}\ntraffic:\n  rate: fast", `:4: "traffic.rate" is fast: want a number`},
		{"model: tiny\npools: {d: {role: decode}}\ntraffic: {prompt-tokens: long}", `:3: "traffic.prompt-tokens": `},
		{"model: tiny\npools: {d: {role: decode}}\ntraffic: {seed: 3}", `:3: "traffic.seed": the seed is of the whole simulation`},
		{bad("events: 1"), `:4: "events" must be a list`},
		{bad("events: [{kill: d-1}]"), `:4: an event needs a time, such as "at: 20s"`},
		{bad("events:\n- {at: 3, kill: d-1}"), `:5: "events.at" is 3: write a number and a unit`},
		{bad("events: [{at: 3s}]"), `:4: the event does nothing: add one of kill, start`},
		{bad("events: [{at: 3s, kil: d-1}]"), `:4: unknown key "events.kil": did you mean "events.kill"?`},
		{bad("events: [{at: 3s, kill: d-1, drain: d-1}]"), `:4: an event does one thing`},
		{bad("events:\n- {at: 3s, kill: d-9}"), `:5: "events.kill": there is no worker "d-9": did you mean "d-1"?`},
		{bad("events: [{at: 3s, kill: 'x-*'}]"), `:4: "events.kill": there is no worker "x-*"`},
		{bad("events: [{at: 3s, kill: 'd-['}]"), `:4: "events.kill": "d-[" is not a pattern`},
		{bad("events: [{at: 3s, slow: d-1}]"), `:4: "events.slow" needs a factor`},
		{bad("events: [{at: 3s, slow: d-1, factor: -2}]"), `:4: "events.factor" is -2: want a number`},
		{bad("events: [{at: 3s, scale: dd, to: 2}]"), `:4: "events.scale": there is no pool "dd": the pools are p, d`},
		{bad("events: [{at: 3s, scale: d}]"), `:4: "events.scale" needs the number of workers`},
		{bad("events: [{at: 3s, rate-times: 2}]"), `:4: "events.rate-times" needs how long it lasts`},
		{bad("events: [{at: 3s, rate-times: -2, for: 1s}]"), `:4: "events.rate-times" is -2: want a number from 0 to 1000`},
		{bad("events:\n- {at: 3s, rate-times: 2, for: 5s}\n- {at: 4s, rate-times: 2, for: 1s}"), `:6: "events.rate-times": "4s+1s=2" overlaps`},
		{bad("events: [{at: 3s, scale: d, to: 10000}]"), `:4: 10002 workers are more than 10000`},
		{bad("events: [{at: 3s, kill: d-1, for: 2s}]"), `:4: unknown key "events.for": the keys here are at, kill`},
		{bad("events: [{at: 999999999999h, kill: d-1}]"), `:4: "events.at" is 999999999999h, which is too long`},
		{bad("router: {max-queue-wait: 999999999999h}"), `:4: "router.max-queue-wait" is 999999999999h, which is too long`},
		{bad("autoscale: {}"), `:4: no pool follows the load: name one, such as "autoscale: {d: 1..8}"`},
		{bad("autoscale: {d: 4..1}"), `:4: "autoscale.d": "4..1" is no range of workers: write 1..8`},
		{bad("autoscale: {d: 4..8}"), `:4: "autoscale.d" is 4..8, but the pool begins with 3: change one of them`},
		{bad("autoscale: {d: 1..20000}"), `:4: "autoscale.d": "1..20000" is no range of workers`},
		{bad("autoscale: {d: 1..9, dd: 1..2}"), `:4: unknown key "autoscale.dd": did you mean "autoscale.d"?`},
		{bad("autoscale: {d: 1..9, policy: queu}"), `:4: "autoscale.policy": there is no policy of scaling "queu", did you mean "queue"?`},
		{bad("autoscale: {d: 1..9, start-time: 30}"), `:4: "autoscale.start-time" is 30: write a number and a unit`},
		{bad("autoscale: {d: 1..9, every: 1ms}"), `:4: "autoscale.every" is 1ms: want a time from 1s`},
		{bad("autoscale: {d: 1..9, utilisation: 2}"), `:4: "autoscale.utilisation" is 2: want a number from 0.05 to 1`},
		{"model: tiny\npools: {a: {role: decode}, b: {role: decode}}\ntraffic: {rate: 1}\nautoscale: {a: 1..2}", `:4: "autoscale.a": another pool has the same role`},
		{bad("events: [{at: 3s, cut: [d-1, d-1]}]"), `:4: "events.cut": both are the host d-1: name two hosts`},
		{bad("network: {pairs: [{between: [d-1, d-1]}]}"), `:4: "network.pairs.between": both are the host d-1`},
		{bad("acceptance: 2"), `:4: "acceptance" is 2: want`},
		{pool("role: decode, speculate: ngram"), `:4: pool p drafts tokens, but nothing says how often a draft token is right: add "acceptance: 0.7" at the top`},
		{"acceptance: 0.7\n" + pool("role: decode, speculate: medusa"), `:5: speculate: "medusa" is neither off, ngram nor draft`},
		{"acceptance: 0.7\n" + pool("role: decode, speculate: ngram, speculate-tokens: 16"), `:5: speculate-tokens: 16 is outside 1 to 15`},
		{"acceptance: 0.7\n" + pool("role: prefill, speculate: ngram"), `:5: unknown key "pools.p.speculate"`},
		{"acceptance: 0.7\nprofile: old.json\n" + pool("role: decode, speculate: ngram"), `:6: pool p drafts tokens, but its profile does not say how long it takes to verify them`},
		{bad("events: [{at: 3s, cut: [p-1, d-1], until: 3s}]"), `:4: unknown key "events.until"`},
	} {
		_, err := scenario.Parse(filepath.Join(dir, "s.yaml"), []byte(test.text), load(t))
		if err == nil {
			t.Errorf("%q: no error, want %q", test.text, test.want)
			continue
		}
		text := err.Error()
		if !strings.HasPrefix(text, filepath.Join(dir, "s.yaml")+":") || !strings.Contains(text, test.want) || strings.Contains(text, "\n") {
			t.Errorf("%q: the error is\n%s\nwant\n%s", test.text, text, test.want)
		}
	}
}

// TestSpeculation: pools of decode workers have the flags of live ones.
func TestSpeculation(t *testing.T) {
	s, err := scenario.Parse("s.yaml", []byte("model: tiny\nacceptance: 0.7\npools:\n  d: {role: decode, speculate: ngram, speculate-tokens: 5}\n  e: {role: decode, speculate: ngram}\n  f: {role: decode}\ntraffic: {rate: 1}"), load(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := scenario.Parse("s.yaml", []byte("model: tiny\nacceptance: 0.7\npools:\n  d: {role: decode, speculate: draft}\ntraffic: {rate: 1}"), load(t)); err == nil || !strings.Contains(err.Error(), "no draft model") {
		t.Errorf("a simulated draft model: error %v", err)
	}
	c := s.Config(1)
	if got := []int{c.Workers[0].MaxDrafts, c.Workers[1].MaxDrafts, c.Workers[2].MaxDrafts}; c.Acceptance != 0.7 || !slices.Equal(got, []int{5, 8, 0}) {
		t.Errorf("acceptance %v, guesses %v", c.Acceptance, got)
	}
}

// A slow or cut that would end another early is refused, however the file orders them.
func TestOverlaps(t *testing.T) {
	for _, test := range []struct {
		events []string // in the lines from 5 on
		want   string   // empty: it is read
	}{
		{[]string{"{at: 1s, slow: d-1, factor: 3, for: 9s}", "{at: 5s, slow: d-*, factor: 2, for: 1s}"}, `:6: "events.slow" overlaps on d-1 with that of line 5`},
		{[]string{"{at: 5s, slow: d-1, factor: 3, for: 1s}", "{at: 1s, slow: d-*, factor: 2, for: 9s}"}, `:5: "events.slow" overlaps on d-1 with that of line 6`},
		{[]string{"{at: 1s, slow: d-1, factor: 3, for: 9s}", "{at: 5s, slow: d-1, factor: 2}"}, `:6: "events.slow" overlaps`},
		{[]string{"{at: 1s, slow: d-1, factor: 3}", "{at: 5s, slow: d-1, factor: 2, for: 1s}"}, `:6: "events.slow" overlaps`},
		{[]string{"{at: 1s, slow: d-1, factor: 3, for: 9s}", "{at: 5s, slow: d-2, factor: 2, for: 1s}"}, ""},
		{[]string{"{at: 5s, slow: d-1, factor: 3, for: 9s}", "{at: 1s, slow: d-1, factor: 2, for: 4s}"}, ""},
		{[]string{"{at: 1s, slow: d-1, factor: 3}", "{at: 5s, slow: d-1, factor: 2}"}, ""},
		{[]string{"{at: 1s, slow: d-1, factor: 3}", "{at: 2s, slow: d-1, factor: 1}", "{at: 5s, slow: d-1, factor: 2, for: 1s}"}, ""},
		{[]string{"{at: 1s, cut: [d-1, p-*], for: 9s}", "{at: 5s, cut: [p-1, d-*], for: 1s}"}, `:6: "events.cut" overlaps on d-1 with that of line 5`},
		{[]string{"{at: 1s, cut: [d-1, p-*]}", "{at: 5s, cut: [d-1, p-1], for: 1s}"}, `:6: "events.cut" overlaps`},
		{[]string{"{at: 1s, cut: [d-1, p-*], for: 9s}", "{at: 5s, cut: [d-1, d-2], for: 1s}"}, ""},
		{[]string{"{at: 1s, cut: [d-1, p-*]}", "{at: 4s, heal: [d-1, p-*]}", "{at: 5s, cut: [d-1, p-1], for: 1s}"}, ""},
		{[]string{"{at: 1s, cut: [d-1, p-*], for: 9s}", "{at: 4s, heal: [d-1, p-*]}"}, ""},
	} {
		_, err := scenario.Parse("s.yaml", []byte(lines("events:\n- "+strings.Join(test.events, "\n- "))), load(t))
		if got := fmt.Sprint(err); (err == nil) != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%q: %v, want %q", test.events, err, test.want)
		}
	}
}

// What lasts for a time is over before what begins at its end.
func TestEndsComeFirst(t *testing.T) {
	s, err := scenario.Parse("s.yaml", []byte(lines("events: [{at: 5s, slow: d-1, factor: 3}, {at: 1s, slow: d-1, factor: 2, for: 4s}]")), load(t))
	if err != nil {
		t.Fatal(err)
	}
	if last := s.Config(1).Events[2].Do; last != (simulate.Slow{Worker: "d-1", Factor: 3}) {
		t.Errorf("last is %+v", last)
	}
}

// Workers that a scale adds have their names in all of the file.
func TestScaledWorkersHaveNames(t *testing.T) {
	s, err := scenario.Parse("s.yaml", []byte(lines(
		"network: {links: [{between: [p-1, d-*], bandwidth: 1GB/s}]}",
		"events: [{at: 3s, slow: 'd-*', factor: 0.5}, {at: 2s, cut: [p-1, d-4]}, {at: 1s, scale: d, to: 4}]")), load(t))
	if err != nil {
		t.Fatal(err)
	}
	c := s.Config(1)
	if diff := cmp.Diff(simulate.Hosts{"d-1", "d-2", "d-3", "d-4"}, c.Network.Links[0].Between[1]); diff != "" {
		t.Error(diff)
	}
	if last := c.Events[len(c.Events)-1].Do; last != (simulate.Slow{Worker: "d-4", Factor: 0.5}) {
		t.Errorf("the last event is %+v", last)
	}
}

func TestEnds(t *testing.T) {
	s, err := scenario.Parse("s.yaml", []byte(lines("events:", "- {at: 3s, heal: [p-1, d-1]}", "- {at: 2s, kill: d-1}")), load(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ends(4 * time.Second); err != nil {
		t.Error(err)
	}
	if err := s.Ends(3 * time.Second); err == nil || !strings.HasPrefix(err.Error(), "s.yaml:5: the event is at 3s, but the traffic ends at 3s") {
		t.Error(err)
	}
}

// An error of a flag is placed where the file sets the flag, or else where the traffic is.
func TestPlace(t *testing.T) {
	s, err := scenario.Parse("s.yaml", []byte("model: tiny\npools: {d: {role: decode}}\ntraffic:\n  rate: 1\n  concurrency: 3\nevents:\n- {at: 1s, rate-times: 2, for: 1s}"), load(t))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"--rate goes with neither --concurrency nor --sweep": "s.yaml:4: ",
		"--concurrency: 3 is too few":                        "s.yaml:5: ",
		"--surge multiplies a rate":                          "s.yaml:7: ",
		"--rate-of-something is unknown":                     "s.yaml:4: ",
		"say how much load":                                  "s.yaml:4: ",
	} {
		if got := s.Place(errorString(text)).Error(); got != want+text {
			t.Errorf("%q, want %q before it", got, want)
		}
	}
}

type errorString string

func (e errorString) Error() string { return string(e) }

// Whatever a file holds, it is read or refused in one line, and what is read can be made.
func FuzzParse(f *testing.F) {
	f.Add(lines())
	f.Add(lines("events: [{at: 1s, slow: d-*, factor: 3, for: 1s}, {at: 2s, scale: d, to: 5}, {at: 1s, cut: [p-*, d-*]}]"))
	f.Add(lines("network: {latency: 1ms, links: [{between: [p-1, d-1], bandwidth: 1GB/s}]}", "router: {queue-limit: 3}", "profile: {base-ms: 1}", "routers: 3"))
	f.Add("model: {layers: 2, hidden-size: 64, heads: 4, vocab-size: 300, context-tokens: 512}\npools: {d: {role: decode, hosts: [a, b], kv-memory: 1GiB}}\ntraffic: {surge: [1s+1s=2, 3s+1s=0], class: [a=1, b=2]}")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := scenario.Parse("s.yaml", []byte(text), load(t))
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "s.yaml:") {
				t.Errorf("%q", err)
			}
			return
		}
		if len(s.Config(1).Workers) > 20 || s.Config(1).Spec.Layers > 8 {
			return // it would take long
		}
		if _, err := simulate.New(s.Config(1)); err != nil {
			t.Errorf("read, but cannot be made: %v", err)
		}
	})
}

// A pool that follows the load has all workers that it may come to have, of which those run that it
// begins with.
func TestAutoscale(t *testing.T) {
	s, err := scenario.Parse("s.yaml", []byte(lines("autoscale: {d: 2..6, start-time: 45s, down-after: 1m, target-tokens: 900}")), load(t))
	if err != nil {
		t.Fatal(err)
	}
	c := s.Config(1)
	a := c.Autoscale
	if a == nil || a.Prefill != "" || a.Decode != "d" || a.StartTime != 45*time.Second || a.DownAfter != time.Minute || a.TargetTokens != 900 || a.Policy != simulate.ScaleDesired {
		t.Fatalf("%+v", a)
	}
	if got := a.Bounds.String(); got != "prefill=2..2,decode=2..6" {
		t.Errorf("bounds %s", got)
	}
	if s.Workers() != 5 || len(c.Workers) != 8 {
		t.Errorf("%d of %d workers run", s.Workers(), len(c.Workers))
	}
	if err := s.ScaleBy("queue"); err != nil || s.Config(1).Autoscale.Policy != simulate.ScaleQueue {
		t.Errorf("%v", err)
	}
	for sizes, want := range map[string]string{"d": "as in p=4,d=9", "d=x": "as in p=4,d=9", "q=1": "the pools are p, d", "d=-1": "as in p=4,d=9"} {
		if err := s.Fix(sizes); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", sizes, err)
		}
	}
	if err := s.Fix("d=7, p=1"); err != nil || s.Workers() != 8 || s.Config(1).Autoscale != nil {
		t.Errorf("%v: %d workers run", err, s.Workers())
	}
	if err := s.ScaleBy("queue"); err == nil || !strings.Contains(err.Error(), "no pool of s.yaml follows the load") {
		t.Errorf("%v", err)
	}
}

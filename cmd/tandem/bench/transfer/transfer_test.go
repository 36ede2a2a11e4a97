package transfer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/transfer"
)

// side makes this test binary a side of a transfer: its value is which.
const side = "TRANSFER_TEST_SIDE"

func TestMain(m *testing.M) {
	if name := os.Getenv(side); name != "" {
		os.Exit(serveChild(name))
	}
	goleak.VerifyTestMain(m)
}

func serveChild(name string) int {
	var p transfer.Plan
	err := json.Unmarshal([]byte(os.Args[len(os.Args)-1]), &p)
	if err == nil {
		err = transfer.ServeChild(context.Background(), p, name, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func plan(only ...string) transfer.Plan {
	return transfer.Plan{
		Bytes: 1 << 20, Transport: transfer.TCP, Connections: 1, Preset: "tiny", BlockTokens: 16, PromptTokens: 100,
		Rounds: 3, Samples: 2, Large: 3, Lease: time.Second, Only: only,
	}
}

func measure(t *testing.T, p transfer.Plan) *transfer.Result {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := transfer.Child{Binary: "/usr/bin/env", Arguments: func(p transfer.Plan, name string) []string {
		text, err := json.Marshal(p)
		if err != nil {
			t.Error(err)
		}
		return []string{side + "=" + name, binary, string(text)}
	}}
	b, err := transfer.New(p, child, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.Measure(t.Context())
	if err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if r == nil {
		t.FailNow()
	}
	return r
}

func TestRates(t *testing.T) {
	for _, c := range []struct {
		transport string
		only      []string
		rates     int
	}{
		{transfer.TCP, []string{transfer.FigureRate}, 3},
		{transfer.Unix, []string{transfer.FigureRate}, 6},
		{transfer.TCP, []string{transfer.FigureRate, transfer.FigureUnix}, 6},
		{transfer.Shm, []string{transfer.FigureRate}, 6},
		{transfer.Shm, []string{transfer.FigureRate, transfer.FigureUnix}, 9},
		{transfer.TCP, []string{transfer.FigureTLS}, 5 + 1}, // with what encrypts and decrypts
	} {
		p := plan(c.only...)
		p.Transport = c.transport
		r := measure(t, p)
		if len(r.Rates) != c.rates || r.Checksum != "crc32c" || r.Layers != 2 || r.SliceBytes != 2*16*2*16*2 {
			t.Errorf("%+v", r)
		}
		for _, rate := range r.Rates {
			if !(rate.Median > 0 && rate.GBytesPerS >= rate.Median && rate.Spread >= 0 && rate.Spread < 1) {
				t.Errorf("%+v", rate)
			}
		}
		if !(r.GBytesPerS > 0 && r.RawTCP > 0 && r.Ratio > 0 && r.RatioMedian > 0) || math.Abs(r.Ratio-r.GBytesPerS/r.RawTCP) > 1e-9 {
			t.Errorf("%+v", r)
		}
		if r.Valid == nil || *r.Valid != (r.Reason == "") {
			t.Errorf("valid: %v, reason %q", r.Valid, r.Reason)
		}
		unix, encrypted := c.transport == transfer.Unix || slices.Contains(c.only, transfer.FigureUnix), slices.Contains(c.only, transfer.FigureTLS)
		if (r.UnixOverTCP > 0) != unix || (r.RawUnix > 0) != unix {
			t.Errorf("%+v", r)
		}
		if shared := c.transport == transfer.Shm; (r.ShmRatio > 0 && r.ShmOverTCP > 0 && r.RawShm > 0) != shared {
			t.Errorf("%+v", r)
		}
		if (r.TLSOfAllowed > 0) != encrypted || (r.TLSOfAllowedMedian > 0) != encrypted || (r.TLS > 0 && r.AES > 0) != encrypted {
			t.Errorf("%+v", r)
		}
		if r.Allocations != nil || r.Behind != nil || r.Exposed != nil || r.Kills != nil {
			t.Errorf("more was measured than was asked for: %+v", r)
		}
	}
}

func TestTimes(t *testing.T) {
	p := plan(transfer.FigureBehind, transfer.FigureExposed, transfer.FigureAllocations)
	p.Bytes, p.BlockTokens = 8<<20, 256 // more than one chunk for each layer
	r := measure(t, p)
	if b := r.Behind; b == nil || !(b.AloneMs > 0 && b.BehindMs > 0 && b.AloneP90Ms >= b.AloneMs && b.BehindP90Ms >= b.BehindMs && b.WorstMs >= b.BehindP90Ms) || math.Abs(b.Ratio-b.BehindMs/b.AloneMs) > 1e-9 {
		t.Errorf("behind: %+v", b)
	}
	if e := r.Exposed; e == nil || !(e.AfterMs > 0 && e.PrefillMs > 0 && e.ExposedMs > 0 && e.AfterP90Ms >= e.AfterMs && e.ExposedP90Ms >= e.ExposedMs) || math.Abs(e.Ratio-e.ExposedMs/e.AfterMs) > 1e-9 || e.CopiedBytes == 0 {
		t.Errorf("exposed: %+v", e)
	}
	if a := r.Allocations; a == nil || a.Chunks <= 0 || math.IsNaN(a.PerChunk) || math.IsNaN(a.AllPerChunk) {
		t.Errorf("allocations: %+v", a)
	}
	if len(r.Rates) > 0 || r.Kills != nil || r.Valid != nil {
		t.Errorf("%+v", r)
	}
}

// Over shared memory nothing is copied of what the prefill has stored.
func TestExposedOverSharedMemory(t *testing.T) {
	p := plan(transfer.FigureExposed)
	p.Transport = transfer.Shm
	if e := measure(t, p).Exposed; e == nil || e.CopiedBytes != 0 || !(e.ExposedMs > 0) {
		t.Errorf("exposed: %+v", e)
	}
}

func TestKills(t *testing.T) {
	for _, transport := range []string{transfer.TCP, transfer.Unix, transfer.Shm} {
		p := plan(transfer.FigureKill)
		p.Transport = transport
		r := measure(t, p)
		var got []string
		longest := 0.0
		for i, k := range r.Kills {
			got = append(got, k.Side+" "+k.Phase)
			if !(k.FreeS >= 0) {
				t.Errorf("%+v", k)
			}
			if i > 0 {
				longest = max(longest, k.FreeS)
			}
		}
		if text := strings.Join(got, ", "); text != "sender reserved, sender accepted, sender sending, sender sent, receiver accepted, receiver sending, receiver sent" {
			t.Errorf("%s: %s", transport, text)
		}
		if r.Kills[0].FreeS < p.Lease.Seconds() || r.KillSMax != longest {
			t.Errorf("%s: %+v, longest %v", transport, r.Kills, r.KillSMax)
		}
	}
}

func TestMeasureEndsWithItsContext(t *testing.T) {
	b, err := transfer.New(plan(), transfer.Child{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := b.Measure(ctx); !errors.Is(err, context.Canceled) || r != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

// A thread does not spin for one that has no core: on a busy machine that took minutes.
func TestBarrierGivesUp(t *testing.T) {
	if transfer.WaitAlone() {
		t.Error("both came")
	}
}

func TestPlansThatAreRefused(t *testing.T) {
	if err := plan().Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want   string
		change func(*transfer.Plan)
	}{
		{"--transport: \"udp\"", func(p *transfer.Plan) { p.Transport = "udp" }},
		{"--connections: 0", func(p *transfer.Plan) { p.Connections = 0 }},
		{"--connections: 9", func(p *transfer.Plan) { p.Connections = 9 }},
		{"--block-tokens", func(p *transfer.Plan) { p.BlockTokens = 0 }},
		{"--prompt", func(p *transfer.Plan) { p.PromptTokens = 0 }},
		{"--rounds", func(p *transfer.Plan) { p.Rounds = 1 }},
		{"--samples", func(p *transfer.Plan) { p.Samples = 0 }},
		{"--large", func(p *transfer.Plan) { p.Large = 0 }},
		{"--lease", func(p *transfer.Plan) { p.Lease = time.Millisecond }},
		{"--preset: ", func(p *transfer.Plan) { p.Preset = "none" }},
		{"--bytes: 1 ", func(p *transfer.Plan) { p.Bytes = 1 }},
		{"--only: no figure is called \"speed\"", func(p *transfer.Plan) { p.Only = []string{"speed"} }},
	} {
		p := plan()
		c.change(&p)
		if err := p.Validate(); err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %s", err, c.want)
		}
		if b, err := transfer.New(p, transfer.Child{}, nil); err == nil {
			t.Errorf("%s: a bench was made: %v", c.want, b.Close())
		}
	}
}

func TestWhatRatiosMean(t *testing.T) {
	rounds := map[string][]float64{
		"plain tcp 64KiB":  {2, 4, 4},
		"plain tcp 256KiB": {5, 3, 4.9},
		"transfer tcp":     {4, 3.6, 2.5},
		"plain unix 1MiB":  {6, 6, 6},
		"transfer unix":    {4.5, 4.8, 4.7},
		"transfer tls":     {2, 1.8, 1.5},
		"aes-128-gcm seal": {4, 4, 3},
		"aes-128-gcm open": {5, 3.6, 2.5},
	}
	cpu := map[string]float64{
		"plain tcp 64KiB": .5, "plain tcp 256KiB": .4, "transfer tcp": .8, "plain unix 1MiB": .3, "transfer unix": .6,
		"transfer tls": 1.6, "aes-128-gcm seal": .25, "aes-128-gcm open": .15,
	}
	near := func(name string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	r := transfer.Compared(transfer.TCP, rounds, nil, cpu)
	near("rate", r.GBytesPerS, 4)
	near("plain", r.RawTCP, 5)
	near("ratio", r.Ratio, .8)
	near("median of the rounds", r.RatioMedian, .8) // .8, .9, .51
	near("unix over tcp", r.UnixOverTCP, 1.2)
	near("of plain unix", r.UnixRatio, .8)
	near("processor time", r.CPUOverRaw, 2)
	near("of what TCP and AES allow", r.TLSOfAllowed, 1)              // 2 (1/4 + 1/4)
	near("the middle round of that", r.TLSOfAllowedMedian, 1)         // 1, 1, 1.2
	near("processor time of what they allow", r.TLSCPUOfAllowed, .75) // (.8 + .25 + .15) / 1.6
	if !*r.Valid || r.Reason != "" {
		t.Errorf("not valid: %s", r.Reason)
	}
	// A plain copy that was faster before the rounds counts.
	r = transfer.Compared(transfer.TCP, rounds, map[string]float64{"plain tcp 256KiB": 6.4}, cpu)
	near("plain, tried", r.RawTCP, 6.4)
	near("ratio, tried", r.Ratio, .625)
	r = transfer.Compared(transfer.Unix, rounds, nil, cpu)
	near("rate", r.GBytesPerS, 4.8)
	near("ratio", r.Ratio, .96)
	rounds["plain unix 1MiB"] = []float64{6, 4, 4}
	if r = transfer.Compared(transfer.TCP, rounds, nil, cpu); *r.Valid || !strings.Contains(r.Reason, "plain unix 1MiB") {
		t.Errorf("a disturbed run is valid: %+v", r)
	}
}

func TestAllocationsOfAChunk(t *testing.T) {
	const own, other = "github.com/tandem-serving/tandem/", "google.golang.org/grpc.f"
	few := map[string]int64{own + "a.f": 10, own + "b.g": 5, other: 7}
	few[own+"d.once"] = 60
	all := map[string]int64{own + "d.once": 0, own + "a.f": 30, own + "b.g": 5, own + "c.h": 40, own + "cmd/tandem/bench/transfer.x": 900, other: 27}
	a := transfer.PerChunk(few, all, 20)
	if a.PerChunk != 3 || a.AllPerChunk != 4 || len(a.Sites) != 2 || a.Sites[0] != (transfer.AllocationSite{Function: "c.h", PerChunk: 2}) || a.Sites[1].Function != "a.f" {
		t.Errorf("%+v", a)
	}
}

// Pieces go round the memory, none is over the size, and there are as many bytes as
// were asked for, however few are done at a time.
func TestPiecesOfAPlainCopy(t *testing.T) {
	memory := make([]byte, 10)
	for _, c := range []struct {
		size, most int
		n          int64
		want       string
	}{
		{4, 4, 10, "4 4 2"},
		{4, 4, 13, "4 4 2 3"},
		{4, 3, 10, "3 3 3 1"},
		{100, 100, 25, "10 10 5"},
		{4, 4, 0, ""},
	} {
		var sizes []string
		err := transfer.Over(memory, c.size, c.n, func(piece []byte) (int, error) {
			n := min(len(piece), c.most)
			sizes = append(sizes, fmt.Sprint(n))
			return n, nil
		})
		if got := strings.Join(sizes, " "); err != nil || got != c.want {
			t.Errorf("%+v: %s, %v", c, got, err)
		}
	}
	if err := transfer.Over(memory, 4, 4, func([]byte) (int, error) { return 0, nil }); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("without progress: %v", err)
	}
	gone := errors.New("gone")
	if err := transfer.Over(memory, 4, 4, func([]byte) (int, error) { return 0, gone }); !errors.Is(err, gone) {
		t.Errorf("a failure: %v", err)
	}
}

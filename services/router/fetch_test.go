package router_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
)

// withStore starts a store that holds blocks of the prompt that ask makes, a prefill
// worker that has one of them and fetches as told, and a decode worker.
func (m *mesh) withStore(fetch func(*workerv1.BlockSource) (uint32, time.Duration), blocks int) (store, prefill *workertest.Worker) {
	hashes := kvcache.PromptHashes(digest, "test/1", "", slices.Repeat([]int32{17}, window), 32)
	held := &workerv1.ListBlocksResponse{Epoch: 1}
	for _, h := range hashes[:blocks] {
		held.BlockHashes = append(held.BlockHashes, uint64(h))
	}
	store = m.net.Start(record("s1", controlv1.Role_ROLE_KVTRANSFER), nil)
	prefill = m.net.Start(prefillRecord("p1"), nil)
	store.Blocks, prefill.Cached, prefill.Fetch = held, 32, fetch
	prefill.Blocks = &workerv1.ListBlocksResponse{Epoch: 1, BlockHashes: held.GetBlockHashes()[:1]}
	m.workers = append(m.workers, store, prefill)
	m.start(nil, decodeRecord("d1"))
	return store, prefill
}

// What a prefill worker fetched is in usage, timings, budget, metrics, spans and the
// record, over gRPC and over HTTP alike.
func TestFetchedFromAStore(t *testing.T) {
	const took, blocks = 5 * time.Millisecond, 6
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		_, p := m.withStore(func(s *workerv1.BlockSource) (uint32, time.Duration) { return 32 * (s.GetBlocks() - 1), took }, blocks)
		q := ask(dis, 200)
		q.MaxTokens = proto.Uint32(4)
		r := m.generate(t.Context(), q)
		if r.err != nil {
			t.Fatal(r.err)
		}
		want := &workerv1.BlockSource{WorkerId: "s1", Epoch: 1, Addresses: []string{"s1:1"}, Blocks: blocks}
		if got := p.Sources(); len(got) != 1 || !proto.Equal(got[0], want) {
			t.Errorf("the worker was told of %v", got)
		}
		if u := r.finished.GetUsage(); u.GetCachedTokens() != 32*blocks || u.GetPromptTokens() != 200 {
			t.Errorf("usage %v", u)
		}
		x := r.finished.GetTimings()
		if x.GetFetchNs() != int64(took) || x.GetPrefillNs() != int64(took+time.Millisecond)-int64(time.Microsecond) {
			t.Errorf("timings %v", x)
		}
		explained, err := m.control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: r.accepted.GetRequestId()})
		if err != nil || len(explained.GetDecisions()) != 1 || !proto.Equal(explained.GetTimings(), x) {
			t.Fatalf("%v, %v", err, explained)
		}
		if d := explained.GetDecisions()[0]; d.GetSource() != "s1" || d.GetSourceBlocks() != blocks || len(d.GetCandidates()) != 2 {
			t.Errorf("decision %v", d)
		}
		budget, err := m.control.GetBudget(t.Context(), &controlv1.GetBudgetRequest{})
		if err != nil || len(budget.GetLines()) != 11 || len(budget.GetParts()) != 1 {
			t.Fatalf("%v, %v", err, budget)
		}
		if part := budget.GetParts()[0]; part.GetName() != "fetch" || part.GetCount() != 1 || part.GetSumNs() != int64(took) || part.GetTotal() {
			t.Errorf("part %v", part)
		}
		for name, want := range map[string]float64{
			"tandem_prompt_cached_tokens_total": 32 * blocks, "tandem_prompt_fetched_tokens_total": 32 * (blocks - 1), "tandem_router_fetch_hints_total": 1,
		} {
			if got := m.sample(name, "", "").GetCounter().GetValue(); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		if got := m.sample("tandem_router_fetches_total", "result", "fetched").GetCounter().GetValue(); got != 1 {
			t.Errorf("%v fetches", got)
		}
		if h := m.sample("tandem_request_fetch_time_seconds", "", "").GetHistogram(); h.GetSampleCount() != 1 || h.GetSampleSum() != took.Seconds() {
			t.Errorf("histogram %v", h)
		}
		if s := m.sample("tandem_budget_spent_seconds", "stage", "fetch").GetSummary(); s.GetSampleCount() != 1 || s.GetSampleSum() != took.Seconds() {
			t.Errorf("summary %v", s)
		}

		time.Sleep(1100 * time.Millisecond) // then it is not expected any more that the worker holds what it computed
		ids := strings.TrimSuffix(strings.Repeat("17,", 200), ",")
		w := m.post(t.Context(), "/v1/completions", `{"prompt":[`+ids+`],"max_tokens":4}`)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"prompt_tokens_details":{"cached_tokens":192}`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		m.quiet()
		root := the(t, m.ended(), "tandem.generate")
		for key, want := range map[string]string{"tandem.fetch_ns": "5000000", "tandem.fetched_tokens": "160", "gen_ai.usage.cache_read.input_tokens": "192"} {
			if got := attributeOf(root, key); got != want {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
	})
}

// A store that gives nothing, or is gone, costs the attempt that found out.
func TestStoreThatGivesNothing(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		const took = 3 * time.Millisecond
		store, p := m.withStore(func(*workerv1.BlockSource) (uint32, time.Duration) { return 0, took }, 6)
		served := func() (hinted bool) {
			q := ask(dis, 200)
			q.MaxTokens = proto.Uint32(4)
			before := len(p.Sources())
			r := m.generate(t.Context(), q)
			if r.err != nil || r.finished.GetUsage().GetCachedTokens() != 32 || r.finished.GetRoute().GetRetries() != 0 {
				t.Fatalf("%v, %v", r.err, r.finished)
			}
			sources := p.Sources()
			if len(sources) != before+1 {
				t.Fatalf("%d prefills", len(sources)-before)
			}
			hinted = sources[before] != nil
			if spent := r.finished.GetTimings().GetFetchNs(); hinted != (spent == int64(took)) {
				t.Errorf("hinted %v, fetching took %d", hinted, spent)
			}
			return hinted
		}
		if !served() {
			t.Error("not told of the store")
		}
		if served() {
			t.Error("told again at once")
		}
		time.Sleep(time.Second)
		if !served() {
			t.Error("never told again")
		}
		if got := m.sample("tandem_router_fetches_total", "result", "nothing").GetCounter().GetValue(); got != 2 {
			t.Errorf("%v fetches in vain", got)
		}
		store.Kill()
		m.workers = slices.DeleteFunc(m.workers, func(w *workertest.Worker) bool { return w == store })
		time.Sleep(time.Minute)
		synctest.Wait()
		if served() {
			t.Error("told of a store that is gone")
		}
	})
}

package router_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
	"github.com/tandem-serving/tandem/services/router"
)

// long is a request whose answer is 200 tokens with 20 alternatives each: about half
// a megabyte as events, and 90 kB packed.
func long() *inferencev1.GenerateRequest {
	q := ask(agg, 4)
	q.MaxTokens, q.Logprobs = proto.Uint32(200), proto.Uint32(20)
	return q
}

// talk starts a worker that does not end an answer by itself.
func (m *mesh) talk() {
	m.net.Next = func([]uint32, uint64, int) uint32 { return 17 }
	m.start(nil, decodeRecord("d1"))
}

// unread is a request whose client takes the first event, and the others once it is
// told to. err is what came of it.
type unread struct {
	begun, read chan struct{}
	err         chan error
}

func (m *mesh) unread(q *inferencev1.GenerateRequest) *unread {
	u := &unread{begun: make(chan struct{}), read: make(chan struct{}), err: make(chan error, 1)}
	go func() {
		first := true
		u.err <- m.service.Generate(context.Background(), q, func(*inferencev1.GenerateEvent) error {
			if first {
				first = false
				close(u.begun)
				<-u.read
			}
			return nil
		})
	}()
	return u
}

func isUnread(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && rpc.Reason(err) == "UNREAD"
}

// sum is the value of a metric without labels, or the sum of all.
func (m *mesh) sum(name string) float64 {
	m.t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	var sum float64
	for _, family := range families {
		if family.GetName() == name {
			for _, one := range family.GetMetric() {
				sum += one.GetGauge().GetValue() + one.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// An answer that is not read is cut off at what one request may have.
func TestUnreadRequestIsBounded(t *testing.T) {
	for name, resumable := range map[string]time.Duration{"read once": 0, "resumable": time.Minute} {
		t.Run(name, func(t *testing.T) {
			inMesh(t, func(c *router.Config) { c.Serving.UnreadRequest = 64 << 10 }, func(t *testing.T, m *mesh) {
				m.talk()
				q := long()
				if resumable > 0 {
					q.ResumableFor = durationpb.New(resumable)
				}
				u := m.unread(q)
				<-u.begun
				m.quiet() // its workers are free
				if n := m.sum("tandem_router_unread_bytes"); n != 0 {
					t.Errorf("%v bytes are held", n)
				}
				if n := m.sum("tandem_router_unread_ended_total"); n != 1 {
					t.Errorf("%v answers were counted", n)
				}
				close(u.read)
				if err := <-u.err; !isUnread(err) || strings.Contains(err.Error(), "resumable_for") != (resumable > 0) {
					t.Errorf("it ended with %v", err)
				}
				m.quiet()
			})
		})
	}
}

// What is read takes nothing, however long the answer is.
func TestReadAnswersAreDropped(t *testing.T) {
	inMesh(t, func(c *router.Config) { c.Serving.UnreadRequest, c.Serving.UnreadMemory = 64<<10, 64<<10 }, func(t *testing.T, m *mesh) {
		m.talk()
		if r := m.generate(t.Context(), long()); r.err != nil || len(r.tokens) != 200 || len(r.logprobs) != 200 {
			t.Errorf("%d tokens, %d logprobs, %v", len(r.tokens), len(r.logprobs), r.err)
		}
		for _, name := range []string{"tandem_router_unread_bytes", "tandem_router_kept_bytes", "tandem_router_unread_ended_total"} {
			if n := m.sum(name); n != 0 {
				t.Errorf("%s is %v", name, n)
			}
		}
	})
}

// All unread answers together are bounded: the one with most goes first.
func TestUnreadAnswersAreBounded(t *testing.T) {
	const most = 512 << 10
	inMesh(t, func(c *router.Config) { c.Serving.UnreadRequest, c.Serving.UnreadMemory = most, most }, func(t *testing.T, m *mesh) {
		m.talk()
		var all []*unread
		for range 4 {
			u := m.unread(long())
			<-u.begun
			all = append(all, u)
			synctest.Wait()
			if n := m.sum("tandem_router_unread_bytes"); n > most {
				t.Errorf("%v bytes are held", n)
			}
		}
		m.quiet()
		if r := m.generate(t.Context(), long()); r.err != nil || len(r.tokens) != 200 {
			t.Errorf("a client that reads: %d tokens, %v", len(r.tokens), r.err)
		}
		ended := 0
		for _, u := range all {
			close(u.read)
			switch err := <-u.err; {
			case isUnread(err):
				ended++
			case err != nil:
				t.Error(err)
			}
		}
		if ended == 0 || ended == len(all) {
			t.Errorf("%d of %d unread answers ended", ended, len(all))
		}
		if n := m.sum("tandem_router_unread_bytes"); n != 0 {
			t.Errorf("%v bytes are held in the end", n)
		}
	})
}

// A request that has ended counts against its tenant's limit, and is waited for, until
// its client has read it.
func TestUnreadRequestsCount(t *testing.T) {
	inMesh(t, func(c *router.Config) { c.Routing.TenantMaxRequests = 1 }, func(t *testing.T, m *mesh) {
		m.talk()
		u := m.unread(long())
		<-u.begun
		m.quiet() // it has ended on its worker
		r := m.generate(t.Context(), ask(agg, 4))
		if status.Code(r.err) != codes.ResourceExhausted || rpc.Reason(r.err) != "TENANT_LIMIT" {
			t.Errorf("a second request: %v", r.err)
		}
		other := ask(agg, 4)
		other.Tenant, other.MaxTokens = "other", proto.Uint32(1)
		if r := m.generate(t.Context(), other); r.err != nil {
			t.Errorf("another tenant: %v", r.err)
		}
		stopped := make(chan error, 1)
		go func() { stopped <- m.service.Stop(context.Background()) }()
		synctest.Wait()
		select {
		case err := <-stopped:
			t.Errorf("the router stopped over an answer that is being read: %v", err)
		default:
		}
		close(u.read)
		if err := <-u.err; err != nil {
			t.Errorf("read late: %v", err)
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
}

// A router that has to stop does not wait for who does not read.
func TestStopLeavesUnreadAnswers(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.talk()
		u := m.unread(long())
		<-u.begun
		m.quiet()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := m.service.Stop(ctx); err != nil {
			t.Error(err)
		}
		close(u.read)
		if err := <-u.err; err != nil {
			t.Error(err)
		}
	})
}

// Vectors that are being computed are bounded, those of one call and those of all, and cut off no answers.
func TestVectorsAreBounded(t *testing.T) {
	served := spec()
	served.HiddenSize = 480 // 2 KiB each
	inMeshOf(t, served, func(c *router.Config) { c.Serving.UnreadRequest, c.Serving.UnreadMemory = 64<<10, 64<<10 }, func(t *testing.T, m *mesh) {
		held, release := make(chan struct{}), make(chan struct{})
		holds := sync.OnceFunc(func() { close(held) })
		m.net.Next = func([]uint32, uint64, int) uint32 { return 17 }
		m.start(func(_ context.Context, _ *workertest.Worker, task *workerv1.Task, stage workertest.Stage, _ int) error {
			if stage == workertest.Token && task.GetPool() {
				holds()
				<-release
			}
			return nil
		}, decodeRecord("d1"))[0].MeanState = make([]float32, 480)
		m.workers[0].MeanState[0] = 1
		q := long()
		q.MaxTokens = proto.Uint32(20)
		answer := m.unread(q)
		<-answer.begun
		m.quiet()
		if n := m.sum("tandem_router_unread_bytes"); n < 45<<10 {
			t.Fatalf("an answer of %v bytes", n)
		}
		embed := func(texts int) error {
			q := &inferencev1.EmbedRequest{}
			for range texts {
				q.Inputs = append(q.Inputs, &inferencev1.EmbedInput{Input: &inferencev1.EmbedInput_TokenIds{TokenIds: ask(agg, 4).GetTokenIds()}})
			}
			_, err := m.inference.Embed(t.Context(), q)
			return err
		}
		if err := embed(17); rpc.Field(err) != "inputs" {
			t.Errorf("too many for one call: %v", err)
		}
		first := make(chan error, 1)
		go func() { first <- embed(10) }()
		<-held
		if err := embed(7); rpc.Reason(err) != "VECTOR_MEMORY" {
			t.Errorf("beside another call: %v", err)
		}
		close(release)
		if err := <-first; err != nil {
			t.Error(err)
		}
		if err := embed(16); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		close(answer.read)
		if err := <-answer.err; err != nil {
			t.Errorf("an answer beside them: %v", err)
		}
		if n := m.sum("tandem_router_vector_bytes"); n != 0 {
			t.Errorf("%v bytes are held in the end", n)
		}
	})
}

// Requests that were refused have nothing to resume, and leave the place to answers that have.
func TestRefusedRequestsAreNotKept(t *testing.T) {
	inMesh(t, func(c *router.Config) { c.Serving.KeptLogs = 1 }, func(t *testing.T, m *mesh) {
		m.talk()
		q := ask(agg, 4)
		q.ResumableFor = durationpb.New(time.Minute)
		answered := m.generate(t.Context(), q)
		if answered.err != nil {
			t.Fatal(answered.err)
		}
		m.workers[0].Kill()
		for range 3 {
			if r := m.generate(t.Context(), q); status.Code(r.err) != codes.Unavailable || r.accepted != nil {
				t.Fatal(r.err)
			}
		}
		stream, err := m.inference.Resume(t.Context(), &inferencev1.ResumeRequest{RequestId: answered.accepted.GetRequestId(), Secret: answered.accepted.GetSecret()})
		if err != nil {
			t.Fatal(err)
		}
		if again := m.collect(stream, 0); again.err != nil || again.text != answered.text {
			t.Errorf("%q, %v", again.text, again.err)
		}
		if n := m.sum("tandem_router_kept_forgotten_total"); n != 0 {
			t.Errorf("%v answers are forgotten early", n)
		}
	})
}

// A tenant with many answers that can be resumed pushes out its own, and not those of others.
func TestTenantsShareKeptAnswers(t *testing.T) {
	inMesh(t, func(c *router.Config) { c.Serving.KeptLogs = 3 }, func(t *testing.T, m *mesh) {
		m.talk()
		var answers []result
		for _, tenant := range []string{"few", "many", "many", "many", "many"} {
			q := ask(agg, 4)
			q.Tenant, q.ResumableFor = tenant, durationpb.New(time.Minute)
			answers = append(answers, m.generate(t.Context(), q))
		}
		for i, want := range []codes.Code{codes.OK, codes.NotFound, codes.NotFound, codes.OK, codes.OK} {
			stream, err := m.inference.Resume(t.Context(), &inferencev1.ResumeRequest{RequestId: answers[i].accepted.GetRequestId(), Secret: answers[i].accepted.GetSecret()})
			if err != nil {
				t.Fatal(err)
			}
			if again := m.collect(stream, 0); status.Code(again.err) != want {
				t.Errorf("answer %d: %v", i, again.err)
			}
		}
	})
}

// An answer that is kept to be resumed keeps nothing of what was asked: nothing bounds that.
func TestKeptAnswersLeaveTheirRequests(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.talk()
		q := ask(agg, 4)
		q.ResumableFor, q.StructuredOutput = durationpb.New(time.Minute), &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Choice{Choice: &inferencev1.Choice{Texts: []string{"a", "b"}}}}
		asked := weak.Make(q.GetStructuredOutput())
		if err := m.service.Generate(t.Context(), q, func(*inferencev1.GenerateEvent) error { return nil }); err != nil {
			t.Fatal(err)
		}
		m.quiet()
		q = nil
		runtime.GC()
		if asked.Value() != nil {
			t.Error("the request is still there")
		}
		if n := m.sum("tandem_router_kept_bytes"); n == 0 {
			t.Error("no answer is kept")
		}
	})
}

// What is kept to be resumed is bounded in bytes: the oldest is forgotten first.
func TestKeptAnswersAreBounded(t *testing.T) {
	const most = 300 << 10
	inMesh(t, func(c *router.Config) { c.Serving.KeptMemory = bytesize.Size(most) }, func(t *testing.T, m *mesh) {
		m.talk()
		var all []result
		for range 8 {
			q := long()
			q.ResumableFor = durationpb.New(5 * time.Minute)
			r := m.generate(t.Context(), q)
			if r.err != nil {
				t.Fatal(r.err)
			}
			all = append(all, r)
			if n := m.sum("tandem_router_kept_bytes"); n > most || n == 0 {
				t.Errorf("%v bytes are kept", n)
			}
		}
		if n := m.sum("tandem_router_unread_bytes"); n != 0 {
			t.Errorf("%v bytes are not read", n)
		}
		resumed := 0
		for i, r := range all {
			stream, err := m.inference.Resume(t.Context(), &inferencev1.ResumeRequest{RequestId: r.accepted.GetRequestId(), Secret: r.accepted.GetSecret(), Offset: 7})
			if err != nil {
				t.Fatal(err)
			}
			again := m.collect(stream, 7)
			switch {
			case status.Code(again.err) == codes.NotFound:
				if resumed > 0 {
					t.Errorf("request %d was forgotten before older ones", i)
				}
			case again.err != nil || len(again.tokens) != 193 || len(again.logprobs) != 193:
				t.Errorf("request %d: %d tokens, %v", i, len(again.tokens), again.err)
			default:
				for k, l := range again.logprobs {
					if !proto.Equal(l, r.logprobs[7+k]) {
						t.Errorf("request %d, token %d: %v, want %v", i, 7+k, l, r.logprobs[7+k])
					}
				}
				resumed++
			}
		}
		if resumed < 2 || resumed == len(all) {
			t.Errorf("%d of %d could be resumed", resumed, len(all))
		}
		time.Sleep(6 * time.Minute)
		if n := m.sum("tandem_router_kept_bytes"); n != 0 {
			t.Errorf("%v bytes are kept in the end", n)
		}
	})
}

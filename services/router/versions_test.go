package router_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
)

const otherDigest = "fedcba9876543210fedcba9876543210"

// withoutWeights is the model of a router that has not read its weights.
func withoutWeights() model.Spec {
	s := spec()
	s.Digest = ""
	return s
}

// foreign gives a record other weights or another arithmetic class.
func foreign(r *controlv1.WorkerRecord, digest, class string) *controlv1.WorkerRecord {
	r.ModelDigest, r.LayoutDigest = digest, r.LayoutDigest+uint64(len(class))+uint64(digest[0])
	r.Layout.ModelDigest, r.Layout.ArithmeticClass = digest, class
	return r
}

// A mesh with foreign workers of the same model name serves as if they were not
// there, and says so.
func TestForeignWorkers(t *testing.T) {
	inMeshOf(t, withoutWeights(), nil, func(t *testing.T, m *mesh) {
		outsiders := []*controlv1.WorkerRecord{
			foreign(decodeRecord("a-other-weights"), otherDigest, "test/1"), foreign(decodeRecord("b-other-class"), digest, "int8/1"),
			foreign(prefillRecord("a-other-prefill"), otherDigest, "test/1"),
		}
		workers := m.start(nil, append(outsiders, decodeRecord("d1"), decodeRecord("d2"), prefillRecord("p1"))...)
		var fingerprint string
		for i := range 24 {
			ours := []string{"d1", "d2", "p1"}
			mode := []inferencev1.Mode{agg, dis, auto}[i%3]
			r := m.generate(named(t.Context(), fmt.Sprint("r", i)), ask(mode, 100))
			if r.err != nil {
				t.Fatal(r.err)
			}
			route := r.finished.GetRoute()
			if !slices.Contains(ours, route.GetDecode()) || !slices.Contains(ours, route.GetPrefill()) || !route.GetReproducible() || r.text != story {
				t.Fatalf("%v, %q", route, r.text)
			}
			if f := r.accepted.GetSystemFingerprint(); len(f) != 15 || !strings.HasPrefix(f, "fp_") || fingerprint != "" && f != fingerprint {
				t.Errorf("fingerprint %q after %q", f, fingerprint)
			}
			fingerprint = r.accepted.GetSystemFingerprint()
		}
		for _, w := range workers[:len(outsiders)] {
			if n := len(w.Tasks()); n != 0 {
				t.Errorf("%s got %d tasks", w.Record.GetId(), n)
			}
		}
		if n := m.value("tandem_router_foreign_workers"); n != 3 {
			t.Errorf("%v foreign workers in the metrics", n)
		}
		list, err := m.control.ListWorkers(t.Context(), &controlv1.ListWorkersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range list.GetWorkers() {
			isForeign := w.GetRecord().GetModelDigest() != digest || w.GetRecord().GetLayout().GetArithmeticClass() != "test/1"
			if (w.GetExcluded() != "") != isForeign {
				t.Errorf("%s: excluded %q", w.GetRecord().GetId(), w.GetExcluded())
			}
			if isForeign && strings.Count(m.log.String(), "worker="+w.GetRecord().GetId()+" role=") != 1 {
				t.Errorf("%s is not said once in\n%s", w.GetRecord().GetId(), m.log.String())
			}
		}
		explained, err := m.control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: "r0"})
		if err != nil {
			t.Fatal(err)
		}
		why := ""
		for _, c := range explained.GetDecisions()[0].GetCandidates() {
			if c.GetWorkerId() == "a-other-weights" {
				why = c.GetExcluded()
			}
		}
		if !strings.Contains(why, "its weights or arithmetic are fedcba987654 (test/1), but model fable is served with 0123456789ab (test/1)") {
			t.Errorf("explained by %q", why)
		}
	})
}

// A request whose workers die goes on with others of its version, and with no other
// even if none is left.
func TestRetriesStayWithinTheVersion(t *testing.T) {
	inMeshOf(t, withoutWeights(), nil, func(t *testing.T, m *mesh) {
		others := foreign(decodeRecord("a-other"), otherDigest, "test/1")
		m.start(failAt("d1", workertest.Token, 3, dies), decodeRecord("d1"), decodeRecord("d2"), others)
		if r := m.generate(t.Context(), ask(agg, 4)); r.err != nil || r.text != story || r.finished.GetRoute().GetDecode() != "d2" || !r.finished.GetRoute().GetReproducible() {
			t.Fatalf("%v, %q, %v", r.finished.GetRoute(), r.text, r.err)
		}
		m.workers[1].Kill()
		r := m.generate(t.Context(), ask(agg, 4))
		if status.Code(r.err) != codes.Unavailable {
			t.Errorf("without a worker of its version: %v, %v", r.finished.GetRoute(), r.err)
		}
	})
}

// The operator moves a mesh from one version to another: both are listed, then one.
func TestRollingChangeOfWeights(t *testing.T) {
	inMeshOf(t, withoutWeights(), nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"), foreign(decodeRecord("e1"), otherDigest, "test/1"))
		m.start(nil, decodeRecord("d2"))
		set := func(versions ...*controlv1.ModelVersion) (*controlv1.Policy, error) {
			p, err := m.control.SetPolicy(t.Context(), &controlv1.SetPolicyRequest{Policy: &controlv1.Policy{Versions: versions}})
			synctest.Wait()
			return p.GetPolicy(), err
		}
		decoders := func(n int) map[string]int {
			seen := make(map[string]int)
			for range n {
				r := m.generate(t.Context(), ask(agg, 4))
				if r.err != nil {
					t.Fatal(r.err)
				}
				seen[r.finished.GetRoute().GetDecode()[:1]]++
			}
			return seen
		}
		if seen := decoders(5); seen["d"] != 5 {
			t.Fatalf("before: %v", seen)
		}
		before, after := &controlv1.ModelVersion{Model: "fable", ModelDigest: "0123"}, &controlv1.ModelVersion{Model: "fable", ModelDigest: "fed", Weight: proto.Uint32(9)}
		force, err := set(before, after)
		if err != nil || len(force.GetVersions()) != 2 || force.GetVersions()[1].GetModelDigest() != otherDigest || force.GetVersions()[1].GetArithmeticClass() != "test/1" {
			t.Fatalf("in force %v, %v", force, err)
		}
		got, err := m.control.GetPolicy(t.Context(), &controlv1.GetPolicyRequest{})
		if err != nil || got.GetPolicy().GetVersions()[0].GetModelDigest() != digest || got.GetPolicy().GetVersions()[0].GetArithmeticClass() != "" ||
			got.GetPolicy().TenantMaxRequests != nil || got.GetInForce().GetTenantMaxRequests() == 0 || !proto.Equal(got.GetInForce(), force) {
			t.Errorf("policy %v, %v", got, err)
		}
		if n := m.value("tandem_router_foreign_workers"); n != 0 {
			t.Errorf("%v foreign workers", n)
		}
		decoders(5) // onlyZero draws the first version always
		if _, err := set(after); err != nil {
			t.Fatal(err)
		}
		if seen := decoders(5); seen["e"] != 5 {
			t.Errorf("after: %v", seen)
		}
		if n := m.value("tandem_router_foreign_workers"); n != 2 {
			t.Errorf("%v foreign workers", n)
		}
		// A version of the policy may be set again when its workers are away.
		m.workers[1].Kill()
		m.workers = append(m.workers[:1], m.workers[2:]...)
		m.list()
		time.Sleep(time.Minute)
		whole := &controlv1.ModelVersion{Model: "fable", ModelDigest: otherDigest, Weight: proto.Uint32(9)}
		if _, err := set(whole); err != nil {
			t.Error(err)
		}
	})
}

// The vectors of one call are all of the same weights, even if others are served meanwhile. If no worker has
// them any more, all are of the others.
func TestEmbeddingsAreOfOneVersion(t *testing.T) {
	served := withoutWeights()
	served.HiddenSize = 2
	for _, drains := range []bool{false, true} {
		t.Run(fmt.Sprint("drains: ", drains), func(t *testing.T) {
			inMeshOf(t, served, nil, func(t *testing.T, m *mesh) {
				held, release := make(chan struct{}), make(chan struct{})
				holds := sync.OnceFunc(func() { close(held) })
				before := m.start(func(_ context.Context, _ *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, _ int) error {
					if stage == workertest.Token {
						holds()
						<-release
					}
					return nil
				}, decodeRecord("d1"))[0]
				after := m.start(nil, foreign(decodeRecord("e1"), otherDigest, "test/1"))[0]
				before.MeanState, after.MeanState = []float32{3, 4}, []float32{4, 3}
				go func() {
					<-held
					time.Sleep(time.Millisecond) // the others are sent, too, or wait
					_, err := m.control.SetPolicy(t.Context(), &controlv1.SetPolicyRequest{Policy: &controlv1.Policy{Versions: []*controlv1.ModelVersion{{Model: "fable", ModelDigest: otherDigest}}}})
					if err != nil {
						t.Error(err)
					}
					if drains {
						before.Record = proto.CloneOf(before.Record)
						before.Record.State = controlv1.WorkerState_WORKER_STATE_DRAINING
						m.list()
					}
					close(release)
				}()
				q := &inferencev1.EmbedRequest{}
				for range 12 { // more than run at a time
					q.Inputs = append(q.Inputs, &inferencev1.EmbedInput{Input: &inferencev1.EmbedInput_TokenIds{TokenIds: ask(agg, 4).GetTokenIds()}})
				}
				r, err := m.inference.Embed(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				vector, elsewhere := []float32{.6, .8}, 0
				if drains {
					vector, elsewhere = []float32{.8, .6}, len(q.GetInputs())
				}
				for i, e := range r.GetEmbeddings() {
					if !slices.Equal(e.GetValues(), vector) {
						t.Errorf("input %d has the vector %v", i, e.GetValues())
					}
				}
				if n := len(after.Tasks()); n != elsewhere || len(r.GetEmbeddings()) != len(q.GetInputs()) {
					t.Errorf("%d inputs of %d ran in another version", n, len(r.GetEmbeddings()))
				}
				m.quiet()
			})
		})
	}
}

func TestBadVersions(t *testing.T) {
	inMeshOf(t, withoutWeights(), nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"), foreign(decodeRecord("d2"), "01ff", "test/1"))
		good := func() *controlv1.ModelVersion { return &controlv1.ModelVersion{Model: "fable", ModelDigest: digest} }
		many := make([]*controlv1.ModelVersion, 17)
		for i := range many {
			many[i] = good()
		}
		for _, test := range []struct {
			name, field string
			versions    []*controlv1.ModelVersion
		}{
			{"too many", "policy.versions", many},
			{"twice", "policy.versions[1].model_digest", []*controlv1.ModelVersion{good(), good()}},
			{"twice, one by its beginning", "policy.versions[1].model_digest", []*controlv1.ModelVersion{good(), {Model: "fable", ModelDigest: "0123"}}},
			{"no model", "policy.versions[0].model", []*controlv1.ModelVersion{{ModelDigest: digest}}},
			{"unknown model", "policy.versions[0].model", []*controlv1.ModelVersion{{Model: "gpt-9", ModelDigest: digest}}},
			{"empty digest", "policy.versions[1].model_digest", []*controlv1.ModelVersion{good(), {Model: "fable"}}},
			{"no digest", "policy.versions[0].model_digest", []*controlv1.ModelVersion{{Model: "fable", ModelDigest: "latest"}}},
			{"unknown digest", "policy.versions[0].model_digest", []*controlv1.ModelVersion{{Model: "fable", ModelDigest: "77"}}},
			{"ambiguous digest", "policy.versions[0].model_digest", []*controlv1.ModelVersion{{Model: "fable", ModelDigest: "01"}}},
			{"unknown class", "policy.versions[0].arithmetic_class", []*controlv1.ModelVersion{{Model: "fable", ModelDigest: digest, ArithmeticClass: "int4"}}},
			{"weight 0", "policy.versions[0].weight", []*controlv1.ModelVersion{{Model: "fable", ModelDigest: digest, Weight: proto.Uint32(0)}}},
			{"much weight", "policy.versions[0].weight", []*controlv1.ModelVersion{{Model: "fable", ModelDigest: digest, Weight: proto.Uint32(1001)}}},
		} {
			_, err := m.control.SetPolicy(t.Context(), &controlv1.SetPolicyRequest{Policy: &controlv1.Policy{Versions: test.versions}})
			if rpc.Field(err) != test.field {
				t.Errorf("%s: field %q of %v, want %q", test.name, rpc.Field(err), err, test.field)
			}
		}
		// What is wrong in etcd is ignored, and the rest of the policy holds.
		if _, err := m.members.SetPolicy(t.Context(), &controlv1.Policy{TenantMaxRequests: proto.Uint32(7), Versions: []*controlv1.ModelVersion{{Model: "fable"}}}, membership.AnyRevision); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got, err := m.control.GetPolicy(t.Context(), &controlv1.GetPolicyRequest{})
		if err != nil || got.GetInForce().GetTenantMaxRequests() != 7 || len(got.GetPolicy().GetVersions()) != 0 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

package router_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
)

// Without the secret from a request's first event, a caller reads nothing of the request,
// and does not learn whether it exists.
func TestOnlyTheCallerKnowsItsRequest(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.net.StepTime = 50 * time.Millisecond
		m.start(nil, decodeRecord("d1"))
		q := ask(agg, 4)
		q.ResumableFor = durationpb.New(time.Minute)
		mine, other := lost(t, m, q, 3), lost(t, m, q, 3)
		if mine.GetSecret() == other.GetSecret() || !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(mine.GetSecret()) {
			t.Fatalf("secrets %q and %q", mine.GetSecret(), other.GetSecret())
		}
		explain := func(id, secret string) error {
			_, err := m.requests.Explain(t.Context(), &controlv1.ExplainOwnRequest{RequestId: id, Secret: secret})
			return err
		}
		resume := func(id, secret string) error {
			stream, err := m.inference.Resume(t.Context(), &inferencev1.ResumeRequest{RequestId: id, Secret: secret})
			if err != nil {
				return err
			}
			return m.collect(stream, 0).err
		}
		for what, call := range map[string]func(id, secret string) error{"explain": explain, "resume": resume} {
			unknown := strings.Repeat("0", len(mine.GetRequestId()))
			want := strings.ReplaceAll(fmt.Sprint(call(unknown, mine.GetSecret())), unknown, "ID")
			for name, secret := range map[string]string{
				"none": "", "another's": other.GetSecret(), "a part": mine.GetSecret()[:31], "more": mine.GetSecret() + "0",
				"in capitals": strings.ToUpper(mine.GetSecret()), "zeros": strings.Repeat("\x00", 32),
			} {
				if secret == mine.GetSecret() { // of digits only
					continue
				}
				err := call(mine.GetRequestId(), secret)
				if got := strings.ReplaceAll(fmt.Sprint(err), mine.GetRequestId(), "ID"); status.Code(err) != codes.NotFound || got != want {
					t.Errorf("%s with the secret %s: %s, of an id that there is not: %s", what, name, got, want)
				}
				if err := call("", secret); status.Code(err) != codes.NotFound {
					t.Errorf("%s without an id: %v", what, err)
				}
			}
			if err := call(mine.GetRequestId(), mine.GetSecret()); err != nil {
				t.Errorf("%s with the secret: %v", what, err)
			}
		}
	})
}

// An id that somebody else chose too takes nothing from who had it first.
func TestIDOfAnother(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.net.StepTime = 50 * time.Millisecond
		m.start(nil, decodeRecord("d1"))
		named := metadata.AppendToOutgoingContext(t.Context(), api.HeaderRequestID, "order-17")
		mine := m.generate(named, ask(agg, 4))
		before, err := m.requests.Explain(t.Context(), &controlv1.ExplainOwnRequest{RequestId: "order-17", Secret: mine.accepted.GetSecret()})
		if err != nil || mine.err != nil {
			t.Fatal(err, mine.err)
		}
		for range 3 {
			theirs := m.generate(named, ask(agg, 8))
			if id := theirs.accepted.GetRequestId(); theirs.err != nil || id == "order-17" || !strings.HasPrefix(id, "order-17-") || len(theirs.header) != 1 || theirs.header[0] != id {
				t.Fatalf("it is %q, header %q (%v)", id, theirs.header, theirs.err)
			}
			if _, err := m.requests.Explain(t.Context(), &controlv1.ExplainOwnRequest{RequestId: "order-17", Secret: theirs.accepted.GetSecret()}); status.Code(err) != codes.NotFound {
				t.Errorf("their secret opens mine: %v", err)
			}
		}
		after, err := m.requests.Explain(t.Context(), &controlv1.ExplainOwnRequest{RequestId: "order-17", Secret: mine.accepted.GetSecret()})
		if err != nil || !proto.Equal(before, after) {
			t.Errorf("mine is %v now, was %v (%v)", after, before, err)
		}
		seen, err := m.control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: "order-17"})
		if err != nil || !proto.Equal(before, seen) {
			t.Errorf("operators see %v (%v)", seen, err)
		}
	})
}

// A secret goes to its caller only.
func TestSecretsAreNotToldToOthers(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		workers := m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
		ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		r := m.generate(ctx, ask(dis, 100))
		if r.err != nil {
			t.Fatal(r.err)
		}
		w := m.post(context.Background(), "/v1/completions", `{"prompt":"There was","max_tokens":2}`)
		explained, err := m.control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: r.accepted.GetRequestId()})
		if err != nil {
			t.Fatal(err)
		}
		told := map[string]string{"the log": m.log.String(), "its record": explained.String(), "the body": w.Body.String()}
		for _, worker := range workers {
			told["the worker "+worker.Record.GetId()] = fmt.Sprint(worker.Tasks())
		}
		for _, span := range m.spans.Ended() {
			told["span "+span.Name()] += fmt.Sprint(span.Attributes(), span.Events())
		}
		families, err := m.registry.Gather()
		if err != nil || len(m.spans.Ended()) == 0 {
			t.Fatal(err, len(m.spans.Ended()))
		}
		told["the metrics"] = fmt.Sprint(families)
		for _, secret := range []string{r.accepted.GetSecret(), w.Header().Get("X-Tandem-Secret")} {
			if len(secret) != 32 {
				t.Errorf("secret %q", secret)
			}
			for where, text := range told {
				if strings.Contains(text, secret) {
					t.Errorf("%s has the secret", where)
				}
			}
		}
	})
}

// The headers of an answer have the secret of all that was generated for it, streams
// too; those of an error have none.
func TestSecretOverHTTP(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		last := ""
		for _, c := range []struct {
			path, body string
			answers    int
		}{
			{"/v1/completions", `{"prompt":"There was","max_tokens":2,"n":2}`, 2},
			{"/v1/completions", `{"prompt":"There was","max_tokens":2,"n":2,"stream":true}`, 2},
			{"/v1/chat/completions", `{"messages":[{"role":"user","content":"Tell"}],"max_tokens":2}`, 1},
			{"/v1/responses", `{"input":"Tell","max_output_tokens":2}`, 1},
			{"/v1/responses", `{"input":"Tell","max_output_tokens":2,"stream":true}`, 1},
			{"/v1/completions", `{"prompt":"There was","max_tokens":-1}`, 0},
		} {
			w := m.post(t.Context(), c.path, c.body)
			id, secret := w.Header().Get("X-Request-Id"), w.Header().Get("X-Tandem-Secret")
			if (secret != "") != (c.answers > 0) || secret != "" && secret == last {
				t.Errorf("%s: secret %q, before it %q: %d %s", c.body, secret, last, w.Code, w.Body)
			}
			last = secret
			for i := range c.answers {
				of := id
				if i > 0 {
					of = fmt.Sprintf("%s/%d", id, i)
				}
				if _, err := m.requests.Explain(t.Context(), &controlv1.ExplainOwnRequest{RequestId: of, Secret: secret}); err != nil {
					t.Errorf("%s: %v", of, err)
				}
			}
		}
	})
}

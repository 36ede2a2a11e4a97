package mesh_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// lines is a log that several goroutines write.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// closedMesh is a mesh that asks who calls.
type closedMesh struct {
	*testing.T
	up mesh.Up
}

// dial connects with a key.
func (m *closedMesh) dial(address, key string) *grpc.ClientConn {
	m.Helper()
	config := rpc.ClientConfig{APIKey: key}
	if m.up.Certs != "" {
		config.Credentials = m.certificate("")
	}
	conn, err := rpc.Dial(address, config)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { _ = conn.Close() })
	return conn
}

// keys are the keys' API, for the first key.
func (m *closedMesh) keys() controlv1.KeysClient {
	return controlv1.NewKeysClient(m.dial(m.up.Control, m.up.FirstKey))
}

// create makes a key, and waits until it is in force.
func (m *closedMesh) create(tenant string, limits *controlv1.TenantLimits, scopes ...string) (key, id string) {
	m.Helper()
	key, record := auth.NewKey(time.Now())
	record.Tenant, record.Scopes, record.Limits = tenant, scopes, limits
	if _, err := m.keys().CreateKey(m.Context(), &controlv1.CreateKeyRequest{Key: record}); err != nil {
		m.Fatal(err)
	}
	await(m.T, "the key to be in force", func() bool { return m.models(key) != codes.Unauthenticated })
	return key, record.GetId()
}

// models asks for the models.
func (m *closedMesh) models(key string) codes.Code {
	_, err := inferencev1.NewInferenceClient(m.dial(m.up.Address, key)).ListModels(m.Context(), &inferencev1.ListModelsRequest{})
	return grpcstatus.Code(err)
}

// generate is what a request over gRPC is told first.
func (m *closedMesh) generate(key string, request *inferencev1.GenerateRequest) (*inferencev1.Accepted, error) {
	m.Helper()
	request.Input = &inferencev1.GenerateRequest_Prompt{Prompt: "Once upon a time"}
	ctx := m.Context()
	if request.GetModel() != "" {
		ctx, request.Model = rpc.WithRequestID(ctx, request.GetModel()), ""
	}
	stream, err := inferencev1.NewInferenceClient(m.dial(m.up.Address, key)).Generate(ctx, request)
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	for last := err; last == nil; {
		_, last = stream.Recv()
	}
	return first.GetAccepted(), err
}

// http asks over HTTP.
func (m *closedMesh) http(method, path, key, body string) (*http.Response, string) {
	m.Helper()
	request, err := http.NewRequestWithContext(m.Context(), method, "http://"+m.up.HTTP+path, strings.NewReader(body))
	if err != nil {
		m.Fatal(err)
	}
	if key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		m.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		m.Fatal(err)
	}
	return answer, string(text)
}

// runClosed runs a mesh that asks who calls.
func runClosed(t *testing.T, log *lines, change func(*mesh.UpOptions), test func(m *closedMesh)) {
	t.Helper()
	o := upOptions(t)
	o.Auth.Mode = auth.Required
	if change != nil {
		change(&o)
	}
	logger := quiet
	if log != nil {
		logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := mesh.Run(ctx, o, logger, prometheus.NewRegistry(), ignore, func(up mesh.Up) {
		defer cancel()
		defer http.DefaultClient.CloseIdleConnections()
		m := &closedMesh{T: t, up: up}
		await(m.T, "a router that answers", func() bool { return m.models(up.FirstKey) != codes.Unavailable })
		test(m)
	}); err != nil {
		t.Fatal(err)
	}
}

const asksForText = `{"prompt":"Once upon a time","max_tokens":4}`

// Nobody is let in without a key, with a revoked one or for what it is not; over gRPC and HTTP
// alike. What was asked of operators stands in the log, and no key does.
func TestNobodyInWithoutAKey(t *testing.T) {
	var log lines
	runClosed(t, &log, nil, func(m *closedMesh) {
		key, id := m.create("acme", nil, "generate")
		for name, c := range map[string]struct {
			key        string
			grpc       codes.Code
			httpStatus int
			control    codes.Code
		}{
			"none":          {"", codes.Unauthenticated, http.StatusUnauthorized, codes.Unauthenticated},
			"a wrong one":   {"tandem-0123456789ab-" + strings.Repeat("0", 64), codes.Unauthenticated, http.StatusUnauthorized, codes.Unauthenticated},
			"a client's":    {key, codes.OK, http.StatusOK, codes.PermissionDenied},
			"the first one": {m.up.FirstKey, codes.OK, http.StatusOK, codes.OK},
		} {
			if _, err := m.generate(c.key, &inferencev1.GenerateRequest{MaxTokens: new(uint32(4))}); grpcstatus.Code(err) != c.grpc {
				m.Errorf("%s: Generate: %v", name, err)
			}
			for _, path := range []string{"/v1/completions", "/completions"} {
				if answer, text := m.http(http.MethodPost, path, c.key, asksForText); answer.StatusCode != c.httpStatus {
					m.Errorf("%s: %s: %d %s", name, path, answer.StatusCode, text)
				}
			}
			if answer, text := m.http(http.MethodGet, "/v1/models", c.key, ""); answer.StatusCode != c.httpStatus {
				m.Errorf("%s: models: %d %s", name, answer.StatusCode, text)
			}
			for method, err := range callsOfControl(m.Context(), m.dial(m.up.Control, c.key)) {
				if refused := rpc.Refused(err); refused != (c.control != codes.OK) || refused && grpcstatus.Code(err) != c.control {
					m.Errorf("%s: %s: %v", name, method, err)
				}
			}
			if _, err := controlv1.NewKeysClient(m.dial(m.up.Control, c.key)).ListKeys(m.Context(), &controlv1.ListKeysRequest{}); grpcstatus.Code(err) != c.control {
				m.Errorf("%s: ListKeys: %v", name, err)
			}
		}
		for path, want := range map[string]int{"/": http.StatusUnauthorized, "/metrics": http.StatusUnauthorized, "/v1/none": http.StatusUnauthorized, "/healthz": http.StatusOK, "/readyz": http.StatusOK} {
			if answer, text := m.http(http.MethodGet, path, "", ""); answer.StatusCode != want {
				m.Errorf("without a key, %s: %d %s", path, answer.StatusCode, text)
			}
		}
		answer, text := m.http(http.MethodPost, "/v1/completions", "", asksForText)
		var body struct {
			Error struct{ Code string }
		}
		if err := json.Unmarshal([]byte(text), &body); err != nil || body.Error.Code != "invalid_api_key" || answer.Header.Get("Www-Authenticate") != "Bearer" {
			m.Errorf("without a key: %v %s", answer.Header, text)
		}

		if _, err := m.keys().RevokeKey(m.Context(), &controlv1.RevokeKeyRequest{Id: id[:8]}); err != nil {
			m.Fatal(err)
		}
		began := time.Now()
		await(m.T, "the key to be refused", func() bool { return m.models(key) == codes.Unauthenticated })
		m.Logf("a revoked key is refused after %s", time.Since(began))
		if answer, text := m.http(http.MethodPost, "/v1/completions", key, asksForText); answer.StatusCode != http.StatusUnauthorized {
			m.Errorf("with a revoked key: %d %s", answer.StatusCode, text)
		}
		list, err := m.keys().ListKeys(m.Context(), &controlv1.ListKeysRequest{})
		if err != nil || len(list.GetKeys()) != 2 || list.GetKeys()[1].GetRevoked() == nil || list.GetKeys()[1].GetSha256() != nil {
			m.Errorf("%v, %v", list, err)
		}
		if text := log.String(); strings.Contains(text, key) || strings.Contains(text, m.up.FirstKey) || strings.Contains(text, "Once upon") {
			m.Error("the log has a key or a prompt")
		}
		for _, want := range []string{`msg="control call" router=router-1 method=RevokeKey caller=`, `method=SetPolicy caller=nobody`, `method=Drain caller=` + id} {
			if !strings.Contains(log.String(), want) {
				m.Errorf("the log lacks %q", want)
			}
		}
	})
}

// An operator's watch has no end of its own: it ends when its key is revoked.
func TestARevokedKeyWatchesNoMore(t *testing.T) {
	runClosed(t, nil, nil, func(m *closedMesh) {
		key, id := m.create("ops", nil, "operate")
		watch, err := controlv1.NewControlClient(m.dial(m.up.Control, key)).WatchWorkers(m.Context(), &controlv1.ListWorkersRequest{})
		if err != nil {
			m.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			m.Fatal(err)
		}
		if _, err := m.keys().RevokeKey(m.Context(), &controlv1.RevokeKeyRequest{Id: id}); err != nil {
			m.Fatal(err)
		}
		for err == nil { // workers say each second how they do
			_, err = watch.Recv()
		}
		if grpcstatus.Code(err) != codes.Unauthenticated {
			m.Error(err)
		}
	})
}

// cancelAt is a log that ends a context at a line with a text.
type cancelAt struct {
	text   string
	cancel func()
}

func (c cancelAt) Write(p []byte) (int, error) {
	if strings.Contains(string(p), c.text) {
		c.cancel()
	}
	return len(p), nil
}

// A key that nobody was told of lets nobody in: the next start makes another.
func TestFirstKeyOfAStartThatEndsEarly(t *testing.T) {
	o, data := upOptions(t), t.TempDir()
	o.Auth.Mode, o.DataDir = auth.Required, data
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	logger := slog.New(slog.NewTextHandler(cancelAt{"service started", cancel}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if err := mesh.Run(ctx, o, logger, prometheus.NewRegistry(), ignore, func(mesh.Up) { t.Error("it is ready") }); err != nil {
		t.Fatal(err)
	}
	key := ""
	sameData := func(o *mesh.UpOptions) { o.DataDir = data }
	runClosed(t, nil, sameData, func(m *closedMesh) {
		key = m.up.FirstKey
		if key == "" || m.models(key) != codes.OK {
			m.Errorf("the first key is %q", key)
		}
	})
	runClosed(t, nil, sameData, func(m *closedMesh) {
		if m.up.FirstKey != "" || m.models(key) != codes.OK {
			m.Errorf("the first key, %q, does not last", key)
		}
	})
}

// A part's certificate opens nothing of an operator's, with a key or without one, and the refusal
// leaves a router standing and a line for the audit.
func TestAPartIsNoOperator(t *testing.T) {
	var log lines
	o := upOptions(t)
	o.Auth.Mode, o.Encrypt, o.Certs = auth.Required, true, filepath.Join(t.TempDir(), "certs")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	if err := mesh.Run(ctx, o, logger, prometheus.NewRegistry(), ignore, func(up mesh.Up) {
		defer cancel()
		for _, part := range []string{"router-1", "prefill-1", "decode-1"} {
			source, err := identity.Open(authority.Config(filepath.Join(up.Certs, part)), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{"", up.FirstKey} {
				conn, err := rpc.Dial(up.Control, rpc.ClientConfig{Credentials: source.Client(), APIKey: key})
				if err != nil {
					t.Fatal(err)
				}
				for method, err := range callsOfControl(ctx, conn) {
					if grpcstatus.Code(err) != codes.PermissionDenied || rpc.Reason(err) != api.ReasonWrongRole {
						t.Errorf("%s: %s: %v", part, method, err)
					}
				}
				_ = conn.Close()
			}
		}
		for _, want := range []string{"method=WatchWorkers caller=prefill/prefill-1", "method=ListWorkers caller=router/router-1"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %q", want)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// A tenant learns nothing of another one's requests, even with their ids and secrets.
func TestTenantsDoNotSeeEachOther(t *testing.T) {
	runClosed(t, nil, nil, func(m *closedMesh) {
		acme, _ := m.create("acme", nil, "generate")
		other, _ := m.create("other", nil, "generate")
		const id = "my-request"
		of := func() *inferencev1.GenerateRequest {
			return &inferencev1.GenerateRequest{Model: id, MaxTokens: new(uint32(4)), ResumableFor: durationpb.New(time.Minute)}
		}
		accepted, err := m.generate(acme, of())
		if err != nil || accepted.GetRequestId() != id {
			m.Fatalf("%v, %v", accepted, err)
		}
		again, err := m.generate(acme, of())
		if err != nil || again.GetRequestId() == id {
			m.Errorf("the same id again: %v, %v", again, err)
		}
		if theirs, err := m.generate(other, of()); err != nil || theirs.GetRequestId() != id {
			m.Errorf("another tenant's request is called %q, %v: it shows that one is called %s", theirs.GetRequestId(), err, id)
		}
		for key, want := range map[string]codes.Code{acme: codes.OK, other: codes.NotFound} {
			conn := m.dial(m.up.Address, key)
			_, err := controlv1.NewRequestsClient(conn).Explain(m.Context(), &controlv1.ExplainOwnRequest{RequestId: id, Secret: accepted.GetSecret()})
			if grpcstatus.Code(err) != want {
				m.Errorf("Explain: %v, want %s", err, want)
			}
			stream, err := inferencev1.NewInferenceClient(conn).Resume(m.Context(), &inferencev1.ResumeRequest{RequestId: id, Secret: accepted.GetSecret()})
			if err == nil {
				_, err = stream.Recv()
			}
			if grpcstatus.Code(err) != want {
				m.Errorf("Resume: %v, want %s", err, want)
			}
		}
	})
}

// Where others can call, keys are asked for unless somebody says otherwise.
func TestNobodyInByDefaultWhereOthersCanCall(t *testing.T) {
	o := upOptions(t)
	o.HTTP, o.Auth.Mode = "0.0.0.0:0", auth.None
	if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), "--auth none: ") {
		t.Errorf("%v", err)
	}
	o.Auth.Mode = auth.Required // but in the clear
	if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), "--http 0.0.0.0:0: ") {
		t.Errorf("%v", err)
	}
	runClosed(t, nil, func(o *mesh.UpOptions) {
		o.HTTP, o.Auth.Mode, o.Encrypt, o.Certs = "0.0.0.0:0", "", true, t.TempDir()
	}, func(m *closedMesh) {
		if !m.up.Auth || !m.up.Exposed || m.models("") != codes.Unauthenticated || m.models(m.up.FirstKey) != codes.OK {
			m.Errorf("%+v", m.up)
		}
	})
	runClosed(t, nil, func(o *mesh.UpOptions) { o.HTTP, o.Auth = "0.0.0.0:0", auth.Config{Insecure: true} }, func(m *closedMesh) {
		if m.up.Auth || !m.up.Exposed || m.up.FirstKey != "" || m.models("") != codes.OK {
			m.Errorf("%+v", m.up)
		}
	})
}

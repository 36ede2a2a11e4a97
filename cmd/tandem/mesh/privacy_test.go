package mesh_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// withMesh runs a test against a mesh over real sockets.
func withMesh(t *testing.T, logger *slog.Logger, change func(*mesh.UpOptions), test func(up mesh.Up, client inferencev1.InferenceClient)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := upOptions(t)
	o.Engine.Simulated.StepTime = latency.Model{BaseMs: 1}
	change(&o)
	up, ended := startMesh(ctx, t, o, logger, telemetry.NewRegistry())
	conn, err := rpc.Dial(up.Address, rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	test(up, inferencev1.NewInferenceClient(conn))
	_ = conn.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// usageOf is the usage of a request, or its error.
func usageOf(ctx context.Context, client inferencev1.InferenceClient, q *inferencev1.GenerateRequest) (*inferencev1.Usage, error) {
	stream, err := client.Generate(ctx, q)
	if err != nil {
		return nil, err
	}
	var usage *inferencev1.Usage
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return usage, nil
		}
		if err != nil {
			return nil, err
		}
		if f := event.GetFinished(); f != nil {
			usage = f.GetUsage()
		}
	}
}

// A tenant learns nothing of another one's prompts from what is cached, not even with the other's
// salt: neither on the workers nor in a block store.
func TestTenantsShareNoPrefixes(t *testing.T) {
	withMesh(t, quiet, func(o *mesh.UpOptions) { o.Router.Serving.CacheByTenant, o.KVStores = true, 1 }, func(up mesh.Up, client inferencev1.InferenceClient) {
		prompt := strings.Repeat("Once upon a time there was a little fox who lived in a wood. ", 12)
		for _, c := range []struct {
			name, tenant, salt string
			cached             bool
		}{
			{"the first of its kind", "acme", "", false},
			{"the same tenant again", "acme", "", true},
			{"another tenant", "evil", "", false},
			{"another tenant with the salt that the first one's requests have", "evil", "4:acme:", false},
			{"a tenant whose name ends like that salt", "4:acme", ":", false},
			{"the same tenant with a salt of its own", "acme", "mine", false},
			{"and once more", "acme", "mine", true},
		} {
			usage, err := usageOf(t.Context(), client, &inferencev1.GenerateRequest{
				Model: up.Model, Tenant: c.tenant, CacheSalt: c.salt, Mode: inferencev1.Mode_MODE_DISAGGREGATED,
				Input: &inferencev1.GenerateRequest_Prompt{Prompt: prompt}, MaxTokens: new(uint32(2)),
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := usage.GetCachedTokens() > 0; got != c.cached {
				t.Errorf("%s: %d of %d prompt tokens were cached", c.name, usage.GetCachedTokens(), usage.GetPromptTokens())
			}
		}
	})
}

// lockedBuffer takes the log lines of all goroutines.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Nothing of what clients send as content or as credentials is logged, at whatever level, whether
// their requests are served or refused.
func TestLogsHoldNoPromptsAndKeys(t *testing.T) {
	const secret = "xyzzy-sesame"
	logs := new(lockedBuffer)
	logger := slog.New(slog.NewJSONHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	withMesh(t, logger, func(*mesh.UpOptions) {}, func(up mesh.Up, client inferencev1.InferenceClient) {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+secret, "x-tandem-secret", secret)
		prompt := &inferencev1.GenerateRequest_Prompt{Prompt: secret}
		for _, q := range []*inferencev1.GenerateRequest{
			{Model: up.Model, Input: prompt, Stop: []string{secret}, CacheSalt: secret, MaxTokens: new(uint32(2))},
			{Model: up.Model, Input: prompt, Stop: []string{secret, ""}, MaxTokens: new(uint32(2))},
			{Model: up.Model, Input: prompt, CacheSalt: strings.Repeat(secret, 99), MaxTokens: new(uint32(2))},
			{Model: up.Model, Input: &inferencev1.GenerateRequest_Prompt{Prompt: strings.Repeat(secret+" ", 9999)}, MaxTokens: new(uint32(2))},
		} {
			_, _ = usageOf(ctx, client, q) // refused or not
		}
		cancelled, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		_, _ = usageOf(cancelled, client, &inferencev1.GenerateRequest{Model: up.Model, Input: prompt})
		cancel()
		_, _ = client.Tokenize(ctx, &inferencev1.TokenizeRequest{Model: up.Model, Text: secret})
		transport := &http.Transport{}
		for path, body := range map[string]string{
			"chat/completions": `{"model":"` + up.Model + `","max_tokens":2,"messages":[{"role":"user","content":"` + secret + `"}]}`,
			"completions":      `{"model":"` + up.Model + `","max_tokens":2,"prompt":"` + secret + `","stop":["` + secret + `"]}`,
			"completions?":     `{"prompt":"` + secret + `",`,
			"completions?a":    `{"` + secret + `":1,"prompt":["` + secret + `",{}]}`,
			"responses":        `{"model":"` + up.Model + `","max_output_tokens":2,"instructions":"` + secret + `","input":"` + secret + `","metadata":{"a":"` + secret + `"}}`,
			"responses?":       `{"input":[{"role":"user","content":"` + secret + `"}],"previous_response_id":"` + secret + `"}`,
			"embeddings":       `{"input":"` + secret + `"}`,
		} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+up.HTTP+"/v1/"+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+secret)
			request.Header.Set("X-Tandem-Secret", secret)
			response, err := (&http.Client{Transport: transport}).Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
		transport.CloseIdleConnections()
	})
	text := logs.String()
	if !strings.Contains(text, "Generate") {
		t.Errorf("no call was logged in %d bytes", len(text))
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, secret) {
			t.Errorf("the log has %s", line)
		}
	}
}

package integration_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/auth"
)

// TestComposeClosed: compose.yaml with tls.yaml and keys lets nobody in without one, over gRPC and
// HTTP, nor an operator without a certificate; a key is in force until it is revoked.
func TestComposeClosed(t *testing.T) {
	command, project := composeCommand(t), composeProject("closed")
	m := clustertest.StartClosedCompose(t, command, project, "TANDEM_ENGINE=simulated")
	key, record := auth.NewKey(time.Now())
	record.Tenant, record.Scopes = "acme", []string{string(auth.Generate)}
	keys := controlv1.NewKeysClient(m.Operator(t))
	if _, err := keys.CreateKey(t.Context(), &controlv1.CreateKeyRequest{Key: record}); err != nil {
		t.Fatal(err)
	}
	generate := func(key string) error {
		ctx, cancel := context.WithTimeout(t.Context(), clustertest.Timeout)
		defer cancel()
		client := &clustertest.Client{Inference: inferencev1.NewInferenceClient(m.Dial(t, m.GRPC, "", key))}
		_, err := client.Generate(ctx, &inferencev1.GenerateRequest{
			Input: &inferencev1.GenerateRequest_Prompt{Prompt: "Once upon a time"}, MaxTokens: new(uint32(4)), Mode: inferencev1.Mode_MODE_DISAGGREGATED,
		})
		return err
	}
	clustertest.Await(t, func() string { // the key is on its way
		if err := generate(key); err != nil {
			return fmt.Sprintf("with a key: %v", err)
		}
		return ""
	})
	if err := generate(""); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a key: %v", err)
	}
	if got := completion(t, m, key); got != http.StatusOK {
		t.Errorf("HTTP with a key: %d", got)
	}
	if got := completion(t, m, ""); got != http.StatusUnauthorized {
		t.Errorf("HTTP without a key: %d", got)
	}
	for certificate, want := range map[string]codes.Code{"": codes.Unauthenticated, "prefill": codes.PermissionDenied, "operator": codes.OK} {
		_, err := controlv1.NewControlClient(m.Dial(t, m.Control, certificate, "")).ListWorkers(t.Context(), &controlv1.ListWorkersRequest{})
		if status.Code(err) != want {
			t.Errorf("operators' calls with the certificate %q: %v, want %v", certificate, err, want)
		}
	}
	if _, err := keys.RevokeKey(t.Context(), &controlv1.RevokeKeyRequest{Id: record.GetId()}); err != nil {
		t.Fatal(err)
	}
	clustertest.Await(t, func() string {
		if err := generate(key); status.Code(err) != codes.Unauthenticated {
			return fmt.Sprintf("with a revoked key: %v", err)
		}
		return ""
	})
	if got := completion(t, m, key); got != http.StatusUnauthorized {
		t.Errorf("HTTP with a revoked key: %d", got)
	}
}

// completion is the status that a completion over HTTP gets.
func completion(t *testing.T, m *clustertest.ClosedCompose, key string) int {
	t.Helper()
	pem, err := os.ReadFile(m.CA())
	if err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS13}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+m.HTTP+"/v1/completions", strings.NewReader(`{"prompt":"Once","max_tokens":4}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close() // the status is all
	return response.StatusCode
}

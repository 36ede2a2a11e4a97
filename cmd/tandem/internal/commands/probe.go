package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// probeResult is what `probe --json` prints.
type probeResult struct {
	Address   string  `json:"address"`
	Service   string  `json:"service"`
	Status    string  `json:"status"`
	LatencyMs float64 `json:"latency_ms"`
}

func newProbeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "probe [ADDR]",
		Short: "Check the health of a server, as containers do",
		Long: `Asks the server at ADDR (default ` + defaultAddr + `) by the gRPC health protocol, which
etcd speaks too, or by a GET if ADDR is an http or https URL. The exit status is 0 only if the
server answers that it is serving. A router is serving if it could serve a request now,
as with /readyz. With --service server it is enough that the router runs.`,
		Example: `  tandem probe 127.0.0.1:7070
  tandem probe --service tandem.worker.v1.Decode unix:///run/tandem/decode.sock
  tandem probe http://127.0.0.1:9090/readyz`,
		Args:        atMostOne("address"),
		Annotations: map[string]string{annotationVariables: variablesIgnore}, // it runs every few seconds
	}
	service := cmd.Flags().String("service", "", "full name of one gRPC service; empty: the server as a whole")
	timeout := cmd.Flags().Duration("timeout", 2*time.Second, "longest wait for the answer")
	asJSON := addJSON(cmd, "print one JSON object: address, service, status, latency_ms")
	security := addClientTLS(cmd)
	onlyOnCommandLine(cmd, "service", "timeout")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		addr := defaultAddr
		if len(args) == 1 {
			addr = args[0]
		}
		ask := probe
		if strings.HasPrefix(addr, "http://") || strings.HasPrefix(addr, "https://") {
			if *service != "" {
				return usageError(cmd, "--service names a gRPC service, but "+addr+" is asked by HTTP")
			}
			ask = probeHTTP
		}
		if *timeout <= 0 {
			return usageError(cmd, fmt.Sprintf("--timeout: %s is not above 0", *timeout))
		}
		result, err := ask(cmd, security, addr, *service, *timeout)
		if *asJSON {
			if printErr := json.NewEncoder(cmd.OutOrStdout()).Encode(result); printErr != nil {
				return printErr
			}
		} else if err == nil {
			_, err = fmt.Fprintln(cmd.OutOrStdout(), result.Status)
		}
		return err
	}
	return cmd
}

// probe asks once. The result says "unreachable" or "unknown" where the server
// gave no status.
func probe(cmd *cobra.Command, security *clientTLS, addr, service string, timeout time.Duration) (probeResult, error) {
	result := probeResult{Address: addr, Service: service, Status: "unreachable"}
	transport, err := security.credentials(cmd)
	if err != nil {
		return result, err
	}
	conn, err := dial(addr, caller{transport: transport}) // health asks nobody for a key
	if err != nil {
		return result, usageError(cmd, err.Error())
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	began := time.Now()
	response, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
	result.LatencyMs = milliseconds(time.Since(began))
	switch code := statusOf(err).Code(); {
	case err == nil:
	case code == codes.NotFound:
		result.Status = "unknown"
		return result, fmt.Errorf("the server at %s has no service %q: see its reflection for those that it has", addr, service)
	case code == codes.Unimplemented:
		result.Status = "unknown"
		return result, fmt.Errorf("the server at %s does not speak the gRPC health protocol: is the address right?", addr)
	case rpc.AnsweredHTTP(err):
		result.Status = "unknown"
		return result, fmt.Errorf("the server at %s speaks HTTP, not gRPC: ask http://%s/readyz", addr, addr)
	case wantsTLS(err) != "":
		return result, fmt.Errorf("%s: %s", addr, wantsTLS(err))
	case code == codes.Canceled:
		return result, routerFailure(err, addr, false)
	default:
		return result, fmt.Errorf("no answer from %s within %s: check that it runs and listens there", addr, timeout)
	}
	result.Status = strings.ToLower(response.GetStatus().String())
	if response.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		return result, fmt.Errorf("%s is %s: it starts, drains or has failed; its log says which", addr, strings.ReplaceAll(result.Status, "_", " "))
	}
	return result, nil
}

// probeHTTP asks once by a GET. 2xx says that the server serves, 503 that it does
// not, and what else it answers says nothing.
func probeHTTP(cmd *cobra.Command, security *clientTLS, addr, _ string, timeout time.Duration) (probeResult, error) {
	result := probeResult{Address: addr, Status: "unreachable"}
	if parsed, err := url.Parse(addr); err != nil || parsed.Host == "" {
		return result, usageError(cmd, fmt.Sprintf("%q is not an address: give host:port, unix:///path, http://host:port/path or https://host:port/path", addr))
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, addr, http.NoBody)
	if err != nil {
		return result, fmt.Errorf("ask %s: %w", addr, err)
	}
	// Straight to the server: a proxy knows nothing of its health.
	config, err := security.config(cmd)
	if err != nil {
		return result, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
	began := time.Now()
	response, err := client.Do(request)
	switch {
	case err == nil:
	case errors.Is(err, context.Canceled):
		return result, routerFailure(err, addr, false)
	case ctx.Err() != nil:
		return result, fmt.Errorf("no answer from %s within %s: check that it runs and listens there", addr, timeout)
	case wantsTLSByHTTP(err) != "":
		return result, fmt.Errorf("%s: %s", addr, wantsTLSByHTTP(err))
	default:
		return result, fmt.Errorf("no answer from %s (%w): check that it runs and listens there", addr, errors.Unwrap(err)) // the address is in the *url.Error
	}
	defer response.Body.Close()
	// A line is enough: /readyz says why it is not ready.
	said, _ := io.ReadAll(io.LimitReader(response.Body, 256))
	result.LatencyMs = milliseconds(time.Since(began))
	switch code := response.StatusCode; {
	case code >= 200 && code < 300:
		result.Status = "serving"
		return result, nil
	case code == http.StatusServiceUnavailable:
		result.Status = "not_serving"
		reason, _, _ := strings.Cut(string(said), "\n")
		return result, fmt.Errorf("%s is not serving: %q", addr, reason)
	default:
		result.Status = "unknown"
		return result, fmt.Errorf("%s answered %s: is the address right?", addr, response.Status)
	}
}

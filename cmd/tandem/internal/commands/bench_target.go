package commands

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/pkg/api"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

type benchTarget struct {
	access
	addr, mode, model string
	connections       int
	sendSLO           bool
	ttft, tpot        time.Duration // what requests ask of the router; 0: nothing
	cmd               *cobra.Command
	openai            client.OpenAIConfig
}

func (b *benchTarget) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&b.addr, "addr", defaultAddr, "gRPC address of the router: host:port or unix:///path")
	fs.StringVar(&b.model, "model", "", "name of the model (default: the only one that is served)")
	fs.StringVar(&b.mode, "mode", "auto", "where the phases run: auto, disaggregated or aggregated")
	oneOf(cmd, "mode", api.Names[inferencev1.Mode]()...)
	fs.IntVar(&b.connections, "connections", 0, "connections to the router (default: chosen by measurement)")
	fs.BoolVar(&b.sendSLO, "send-slo", false, "send the router the ttft and tpot bounds of --slo or --preset with each request")
	b.cmd = cmd
	b.openai.RegisterFlags(fs)
	b.access.add(cmd)
	onlyOnCommandLine(cmd, "model", "openai-key", "openai-header", "openai-body")
}

// promise takes the bounds that the router is told from an SLO.
func (b *benchTarget) promise(config loadtest.Config) error {
	if !b.sendSLO {
		return nil
	}
	if b.openai.URL != "" {
		return errors.New("--send-slo needs a router at --addr: OpenAI's API cannot carry an SLO")
	}
	slo, err := config.Objective()
	if err != nil {
		return err
	}
	b.ttft, b.tpot = slo.Bound("ttft"), slo.Bound("tpot")
	if b.ttft == 0 && b.tpot == 0 {
		return errors.New("--send-slo finds no bound to send: pass --slo with ttft or tpot, such as ttft:p99<500ms")
	}
	return nil
}

// open makes the client, which the caller closes.
func (b *benchTarget) open() (client.Client, error) {
	if b.openai.URL != "" {
		switch {
		case onCommandLine(b.cmd, "addr"):
			return nil, errors.New("--addr and --openai name two servers: pass one of them")
		case onCommandLine(b.cmd, "api-key"): // TANDEM_API_KEY is for routers, as TANDEM_ADDR, and goes nowhere else
			return nil, errors.New("--api-key is for the router at --addr: pass the key of the server at --openai as --openai-key, or in OPENAI_API_KEY")
		}
		if b.openai.APIKey == "" {
			b.openai.APIKey = os.Getenv("OPENAI_API_KEY")
		}
		if b.openai.Model == "" {
			b.openai.Model = b.model
		}
		var err error
		if b.openai.TLS, err = b.tls.config(b.cmd); err != nil {
			return nil, err
		}
		return client.NewOpenAI(b.openai)
	}
	mode, err := benchMode(b.mode)
	if err != nil {
		return nil, err
	}
	if err := checkRouterAddress(b.addr); err != nil {
		return nil, fmt.Errorf("--addr: %w", err)
	}
	as, err := b.access.open(b.cmd)
	if err != nil {
		return nil, err
	}
	return client.NewTandem(client.TandemConfig{Credentials: as.transport, APIKey: as.apiKey, Address: b.addr, Model: b.model, Mode: mode, Connections: b.connections, TTFT: b.ttft, TPOT: b.tpot})
}

func benchMode(name string) (inferencev1.Mode, error) {
	if mode, ok := api.Parse[inferencev1.Mode](name); ok {
		return mode, nil
	}
	return 0, fmt.Errorf("--mode: %q is not auto, disaggregated or aggregated", name)
}

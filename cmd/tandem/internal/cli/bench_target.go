package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/target"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// benchTarget says which server is measured.
type benchTarget struct {
	addr, mode, model string
	connections       int
	openai            target.OpenAIConfig
}

func (b *benchTarget) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&b.addr, "addr", defaultAddr, "gRPC address of the router: host:port or unix:///path")
	fs.StringVar(&b.model, "model", "", "name of the model (default: the only one that is served)")
	fs.StringVar(&b.mode, "mode", "auto", "where the phases run: auto, disaggregated or aggregated")
	oneOf(cmd, "mode", "auto", "disaggregated", "aggregated")
	fs.IntVar(&b.connections, "connections", 0, "connections to the router (default: chosen by measurement)")
	b.openai.RegisterFlags(fs)
	onlyOnCommandLine(cmd, "openai-key", "openai-header", "openai-body")
}

// open makes the target, which the caller closes.
func (b *benchTarget) open() (target.Target, error) {
	if b.openai.URL != "" {
		if b.openai.APIKey == "" {
			b.openai.APIKey = os.Getenv("OPENAI_API_KEY")
		}
		if b.openai.Model == "" {
			b.openai.Model = b.model
		}
		return target.NewOpenAI(b.openai)
	}
	mode, err := benchMode(b.mode)
	if err != nil {
		return nil, err
	}
	return target.NewTandem(target.TandemConfig{Address: b.addr, Model: b.model, Mode: mode, Connections: b.connections})
}

func benchMode(name string) (inferencev1.Mode, error) {
	switch name {
	case "auto":
		return inferencev1.Mode_MODE_AUTO, nil
	case "disaggregated":
		return inferencev1.Mode_MODE_DISAGGREGATED, nil
	case "aggregated":
		return inferencev1.Mode_MODE_AGGREGATED, nil
	}
	return 0, fmt.Errorf("--mode: %q is none of auto, disaggregated and aggregated", name)
}

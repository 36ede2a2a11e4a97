package cli

import (
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// requestFlags are what `generate` and `chat` both say of a request.
type requestFlags struct {
	addr, mode, model, tenant string
	maxTokens                 int64
	stop                      []string
	sampling                  samplingFlags
	json                      bool
}

// add adds all but --json. greedy: without --temperature the likeliest token is taken;
// tokens and text say what --max-tokens and --stop bound.
func (r *requestFlags) add(cmd *cobra.Command, greedy bool, tokens, text string) {
	fs := cmd.Flags()
	fs.StringVar(&r.addr, "addr", defaultAddr, "gRPC address of the router: host:port or unix:///path")
	fs.StringVar(&r.mode, "mode", "auto", "where the phases run: auto, disaggregated or aggregated")
	// Not TANDEM_MODEL: that names a directory.
	fs.StringVar(&r.model, "model", "", "name of the model (default: the only one that is served)")
	fs.StringVar(&r.tenant, "tenant", "", "tenant to be counted under")
	fs.Int64Var(&r.maxTokens, "max-tokens", 0, "most tokens "+tokens+" (default: as many as the context holds)")
	fs.StringArrayVar(&r.stop, "stop", nil, "text that ends "+text+" and is not printed; may be repeated")
	r.sampling.add(cmd, greedy)
	oneOf(cmd, "mode", api.Names[inferencev1.Mode]()...)
	onlyOnCommandLine(cmd, "max-tokens", "stop", "mode", "model", "json")
}

// request builds what is sent, without its input. What would not survive the way to the
// router is refused here, under the names of fields that the router uses.
func (r *requestFlags) request(cmd *cobra.Command) (_ *inferencev1.GenerateRequest, err error) {
	mode, ok := api.Parse[inferencev1.Mode](strings.ToLower(r.mode))
	if !ok {
		return nil, rpc.InvalidArgument("mode", fmt.Sprintf("%q is not a mode: pass auto, disaggregated or aggregated", r.mode))
	}
	request := &inferencev1.GenerateRequest{Model: r.model, Stop: r.stop, Mode: mode, Tenant: r.tenant}
	if request.Sampling, err = r.sampling.sampling(cmd); err != nil {
		return nil, err
	}
	request.MaxTokens, err = givenCount(cmd, "max-tokens", "max_tokens", r.maxTokens, 1, math.MaxInt32)
	return request, err
}

// givenCount is the value of a flag as a field has it; nil if it was not given.
func givenCount(cmd *cobra.Command, flag, field string, value, least, most int64) (*uint32, error) {
	switch {
	case !cmd.Flags().Changed(flag):
		return nil, nil
	case value < least || value > most:
		return nil, rpc.InvalidArgument(field, fmt.Sprintf("%d is outside %d to %d", value, least, most))
	}
	return proto.Uint32(uint32(value)), nil
}

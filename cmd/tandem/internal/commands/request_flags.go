package commands

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// requestFlags are what `generate` and `chat` both say of a request.
type requestFlags struct {
	access
	cmd                       *cobra.Command
	addr, mode, model, tenant string
	maxTokens                 int64
	stop                      []string
	sampling                  samplingFlags
	json                      bool
}

// add adds all but --json. tokens and text say what --max-tokens and --stop bound, tokens
// the default too.
func (r *requestFlags) add(cmd *cobra.Command, tokens, text string) {
	r.cmd = cmd
	r.access.add(cmd)
	fs := cmd.Flags()
	fs.StringVar(&r.addr, "addr", defaultAddr, "gRPC address of the router: host:port or unix:///path; several as host:port,host:port: a request goes on at another router when one is lost")
	fs.StringVar(&r.mode, "mode", "auto", "where the phases run: auto, disaggregated or aggregated")
	// Not TANDEM_MODEL: that names a directory.
	fs.StringVar(&r.model, "model", "", "name of the model (default: the only one that is served)")
	fs.StringVar(&r.tenant, "tenant", "", "tenant to count the request under")
	fs.Int64Var(&r.maxTokens, "max-tokens", 0, "most tokens "+tokens)
	fs.StringArrayVar(&r.stop, "stop", nil, "text that ends "+text+" and is not printed; may be repeated")
	r.sampling.add(cmd)
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

// failure is routerFailure of a request; a flag that set a field which is refused is a
// mistake on the command line.
func (r *requestFlags) failure(err error, answered bool) error {
	if flag := r.flagOf(rpc.Field(err)); flag != "" {
		_, problem, _ := strings.Cut(statusOf(err).Message(), ": ")
		problem = fmt.Sprintf("--%s: %s", flag, problem)
		switch rpc.Reason(err) {
		case api.ReasonInvalidField:
			return usageError(r.cmd, problem)
		case api.ReasonContextLengthExceeded: // which depends on the model
			// The router's words are for whoever writes the field.
			problem = strings.Replace(problem, "or name no limit", "or leave --"+flag+" out", 1)
			return &exitError{status: exitFailed, message: problem, cause: err}
		}
	}
	return routerFailure(err, r.addr, answered)
}

// flagOf is the flag that was given for a field such as sampling.top_k, stop[0] or
// token_ids.ids[2]; empty: none.
func (r *requestFlags) flagOf(field string) string {
	for _, part := range strings.Split(field, ".") {
		part, _, _ = strings.Cut(part, "[")
		name := strings.ReplaceAll(part, "_", "-")
		for _, flag := range []string{name, strings.TrimSuffix(name, "s")} {
			if r.cmd.Flags().Changed(flag) {
				return flag
			}
		}
	}
	return ""
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

// samplingFlags say how tokens are drawn. What is not given is left out of the
// request, so that the model's own defaults hold.
type samplingFlags struct {
	temperature, topP, minP, typicalP float32
	repetition, presence, frequency   float32
	topK                              int64
	seed                              uint64
	logitBias                         string
}

func (s *samplingFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.Float32Var(&s.temperature, "temperature", 0, "divides the logits; 0 always takes the likeliest token (default: the model's)")
	fs.Float32Var(&s.topP, "top-p", 0, "draw from the likeliest tokens that together have this probability; 0 always takes the likeliest (default: the model's)")
	fs.Int64Var(&s.topK, "top-k", 0, "draw from this many likeliest tokens; 0: from all (default: the model's)")
	fs.Float32Var(&s.minP, "min-p", 0, "draw only tokens with at least this share of the likeliest token's probability (default: the model's)")
	fs.Float32Var(&s.typicalP, "typical-p", 0, "draw from the tokens whose surprise is the most usual and that together have this probability (default: the model's)")
	fs.Uint64Var(&s.seed, "seed", 0, "seed of the draws (default: one that the router picks and reports)")
	fs.Float32Var(&s.repetition, "repetition-penalty", 0, "above 1, makes tokens of the prompt and the answer less likely to repeat (default: the model's)")
	fs.Float32Var(&s.presence, "presence-penalty", 0, "subtracted from the logits of generated tokens")
	fs.Float32Var(&s.frequency, "frequency-penalty", 0, "subtracted from the logits of generated tokens, once for each occurrence")
	fs.StringVar(&s.logitBias, "logit-bias", "", "added to the logits of tokens, such as 17=2.5,305=-100; -100 forbids a token")
	onlyOnCommandLine(cmd, "temperature", "top-p", "top-k", "min-p", "typical-p", "seed",
		"repetition-penalty", "presence-penalty", "frequency-penalty", "logit-bias")
}

func (s *samplingFlags) sampling(cmd *cobra.Command) (*inferencev1.Sampling, error) {
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	out := &inferencev1.Sampling{}
	for _, f := range []struct {
		flag  string
		value *float32
		to    **float32
	}{
		{"temperature", &s.temperature, &out.Temperature},
		{"top-p", &s.topP, &out.TopP},
		{"min-p", &s.minP, &out.MinP},
		{"typical-p", &s.typicalP, &out.TypicalP},
		{"repetition-penalty", &s.repetition, &out.RepetitionPenalty},
		{"presence-penalty", &s.presence, &out.PresencePenalty},
		{"frequency-penalty", &s.frequency, &out.FrequencyPenalty},
	} {
		if given(f.flag) {
			*f.to = f.value
		}
	}
	if given("seed") {
		out.Seed = &s.seed
	}
	var err error
	if out.TopK, err = givenCount(cmd, "top-k", "sampling.top_k", s.topK, 0, math.MaxInt32); err != nil {
		return nil, err
	}
	if given("logit-bias") {
		out.LogitBias, err = parseLogitBias(s.logitBias)
	}
	return out, err
}

func parseLogitBias(list string) (map[uint32]float32, error) {
	out := make(map[uint32]float32)
	for _, part := range strings.Split(list, ",") {
		token, bias, _ := strings.Cut(strings.TrimSpace(part), "=")
		id, idErr := strconv.ParseUint(token, 10, 32)
		value, valueErr := strconv.ParseFloat(bias, 32)
		if idErr != nil || valueErr != nil {
			return nil, rpc.InvalidArgument("sampling.logit_bias", fmt.Sprintf("%q is no token id and its bias: pass them as 17=2.5,305=-100", part))
		}
		if _, twice := out[uint32(id)]; twice {
			return nil, rpc.InvalidArgument("sampling.logit_bias", fmt.Sprintf("token %d is given twice: pass it once", id))
		}
		out[uint32(id)] = float32(value)
	}
	return out, nil
}

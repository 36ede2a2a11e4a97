package preprocess

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// Values of Config.GenerationConfig.
const (
	// GenerationConfigModel takes what a request leaves out from the model's
	// generation_config.json.
	GenerationConfigModel = "model"
	// GenerationConfigNone takes it from request.proto alone.
	GenerationConfigNone = "none"
)

// samplingDefaults is what requests for a model get where they say nothing: every
// field set, but for the biases and the seed.
func samplingDefaults(choice string, spec model.Spec) (*inferencev1.Sampling, error) {
	d := &inferencev1.Sampling{
		Temperature: proto.Float32(1), TopK: proto.Uint32(0), TopP: proto.Float32(1), MinP: proto.Float32(0), TypicalP: proto.Float32(1),
		RepetitionPenalty: proto.Float32(1), PresencePenalty: proto.Float32(0), FrequencyPenalty: proto.Float32(0),
	}
	if choice == GenerationConfigNone {
		return d, nil
	}
	published := &inferencev1.Sampling{
		Temperature: spec.Sampling.Temperature, TopP: spec.Sampling.TopP, MinP: spec.Sampling.MinP, TypicalP: spec.Sampling.TypicalP,
		RepetitionPenalty: spec.Sampling.RepetitionPenalty,
	}
	if k := spec.Sampling.TopK; k != nil {
		if *k < 0 {
			return nil, fmt.Errorf("top_k: %d is negative", *k)
		}
		published.TopK = proto.Uint32(uint32(*k))
	}
	proto.Merge(d, published)
	if err := checkSampling(d, spec); err != nil {
		return nil, err
	}
	return d, nil
}

// samplingOf checks how tokens are to be drawn and fills in the defaults.
func samplingOf(in, defaults *inferencev1.Sampling, spec model.Spec) (*inferencev1.Sampling, error) {
	out := proto.CloneOf(defaults)
	if in != nil {
		proto.Merge(out, in)
	}
	if out.GetTopP() == 0 { // workers take that for "not set"
		out.TopP, out.TopK = proto.Float32(1), proto.Uint32(1)
	}
	if out.Seed == nil {
		out.Seed = proto.Uint64(rand.Uint64())
	}
	if err := checkSampling(out, spec); err != nil {
		if field, ok := errors.AsType[*sampler.FieldError](err); ok {
			return nil, rpc.InvalidArgument("sampling."+field.Field, field.Problem)
		}
		return nil, rpc.InvalidArgument("sampling", err.Error())
	}
	return out, nil
}

// checkSampling checks what workers check, and that nothing has the value that
// they take for "not set". Its errors are *sampler.FieldError.
func checkSampling(s *inferencev1.Sampling, spec model.Spec) error {
	switch {
	case s.GetTypicalP() == 0:
		return &sampler.FieldError{Field: "typical_p", Problem: "0 keeps no token; give a share above 0, at most 1"}
	case s.GetRepetitionPenalty() == 0:
		return &sampler.FieldError{Field: "repetition_penalty", Problem: fmt.Sprintf("0 cannot divide; give 1 for none, or a number above 0, at most %d", sampler.MaxRepetitionPenalty)}
	}
	_, err := sampler.Parse(s, spec.VocabSize)
	return err
}

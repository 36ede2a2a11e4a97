package router

import (
	"errors"
	"math/rand/v2"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// samplingOf checks how tokens are to be drawn and fills in the defaults.
func samplingOf(in *inferencev1.Sampling) (*inferencev1.Sampling, error) {
	out := &inferencev1.Sampling{
		Temperature: proto.Float32(1), TopK: proto.Uint32(0), TopP: proto.Float32(1), MinP: proto.Float32(0), Seed: proto.Uint64(0),
	}
	if in.GetSeed() == 0 && (in == nil || in.Seed == nil) {
		out.Seed = proto.Uint64(rand.Uint64())
	}
	if in != nil {
		proto.Merge(out, in)
	}
	if in != nil && in.TopP != nil && in.GetTopP() == 0 {
		return nil, rpc.InvalidArgument("sampling.top_p", "0 keeps no token; give a share above 0 to 1")
	}
	params := sampler.Params{
		Temperature: out.GetTemperature(), TopK: int(out.GetTopK()), TopP: out.GetTopP(), MinP: out.GetMinP(), Seed: out.GetSeed(),
	}
	if err := params.Validate(); err != nil {
		var field *sampler.FieldError
		if errors.As(err, &field) {
			return nil, rpc.InvalidArgument("sampling."+field.Field, field.Problem)
		}
		return nil, rpc.InvalidArgument("sampling", err.Error())
	}
	return out, nil
}

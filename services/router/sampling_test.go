package router_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
	"github.com/tandem-serving/tandem/services/router"
	"github.com/tandem-serving/tandem/services/router/preprocess"
)

// protocolDefaults is what request.proto says of fields that are left out.
func protocolDefaults(seed uint64) *inferencev1.Sampling {
	return &inferencev1.Sampling{
		Temperature: proto.Float32(1), TopK: proto.Uint32(0), TopP: proto.Float32(1), MinP: proto.Float32(0), TypicalP: proto.Float32(1), Seed: &seed,
		RepetitionPenalty: proto.Float32(1), PresencePenalty: proto.Float32(0), FrequencyPenalty: proto.Float32(0),
	}
}

func published() model.SamplingDefaults {
	return model.SamplingDefaults{
		Temperature: proto.Float32(0.6), TopP: proto.Float32(0.9), MinP: proto.Float32(0.01), TopK: new(20), RepetitionPenalty: proto.Float32(1.05),
	}
}

// What a request leaves out comes from the model's generation_config.json if the
// router was told so; what it says is obeyed.
func TestSamplingDefaults(t *testing.T) {
	for _, c := range []struct {
		name      string
		choice    string
		published model.SamplingDefaults
		asked     *inferencev1.Sampling
		want      func(*inferencev1.Sampling)
	}{
		{"the publisher's", preprocess.GenerationConfigModel, published(), nil, func(s *inferencev1.Sampling) {
			s.Temperature, s.TopP, s.MinP = proto.Float32(0.6), proto.Float32(0.9), proto.Float32(0.01)
			s.TopK, s.RepetitionPenalty = proto.Uint32(20), proto.Float32(1.05)
		}},
		{"some of the publisher's", preprocess.GenerationConfigModel, model.SamplingDefaults{TopP: proto.Float32(0.5)}, &inferencev1.Sampling{}, func(s *inferencev1.Sampling) {
			s.TopP = proto.Float32(0.5)
		}},
		{"the request's first", preprocess.GenerationConfigModel, published(), &inferencev1.Sampling{
			Temperature: proto.Float32(0), TopP: proto.Float32(1), MinP: proto.Float32(0), TopK: proto.Uint32(0), RepetitionPenalty: proto.Float32(1),
			PresencePenalty: proto.Float32(0.5), FrequencyPenalty: proto.Float32(-0.5), LogitBias: map[uint32]float32{7: 3, 2: -100},
		}, func(s *inferencev1.Sampling) {
			s.Temperature, s.PresencePenalty, s.FrequencyPenalty = proto.Float32(0), proto.Float32(0.5), proto.Float32(-0.5)
			s.LogitBias = map[uint32]float32{7: 3, 2: -100}
		}},
		{"not the publisher's", preprocess.GenerationConfigNone, published(), nil, func(*inferencev1.Sampling) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			served := spec()
			served.Sampling = c.published
			inMeshOf(t, served, func(config *router.Config) { config.GenerationConfig = c.choice }, func(t *testing.T, m *mesh) {
				d := m.start(nil, decodeRecord("d1"))[0]
				q := ask(agg, 4)
				q.Sampling = c.asked
				r := m.generate(t.Context(), q)
				if r.err != nil {
					t.Fatal(r.err)
				}
				want := protocolDefaults(r.accepted.GetSeed())
				c.want(want)
				if got := d.Tasks()[0].GetSampling(); !proto.Equal(got, want) {
					t.Errorf("sampling %v, want %v", got, want)
				}
			})
		})
	}
}

func TestBadSamplingDefaults(t *testing.T) {
	served := spec()
	served.Sampling.RepetitionPenalty = proto.Float32(0)
	deps := router.Deps{Models: []router.Model{{Spec: served}}, Members: &members{}, Dial: workertest.NewNet(nil).Dial}
	config := router.DefaultConfig()
	if _, err := router.New(config, deps); err == nil || !strings.Contains(err.Error(), "repetition_penalty") || !strings.Contains(err.Error(), "--generation-config=none") {
		t.Errorf("error %v", err)
	}
	config.GenerationConfig = preprocess.GenerationConfigNone
	if _, err := router.New(config, deps); err != nil {
		t.Errorf("told to ignore it: %v", err)
	}
	config.GenerationConfig = "file"
	if _, err := router.New(config, deps); err == nil || !strings.Contains(err.Error(), "generation-config") {
		t.Errorf("error %v", err)
	}
}

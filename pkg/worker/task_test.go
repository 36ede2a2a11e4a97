package worker_test

import (
	"math"
	"reflect"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

func goodTask() *workerv1.Task {
	return &workerv1.Task{
		Envelope:    &inferencev1.Envelope{RequestId: "r", CacheSalt: "tenant", Priority: -3},
		ModelDigest: "d1", TokenIds: []uint32{3, 499, 0}, Generated: 1, MaxTokens: 9,
		Sampling: &inferencev1.Sampling{
			Temperature: new(float32(0.5)), TopK: new(uint32(7)), TopP: new(float32(0.9)), MinP: new(float32(0.1)), Seed: new(uint64(math.MaxUint64)),
			RepetitionPenalty: new(float32(1.25)), PresencePenalty: new(float32(-2)), FrequencyPenalty: new(float32(2)),
			LogitBias: map[uint32]float32{499: -100, 0: 3.5, 7: 100},
		},
		Logprobs:     new(uint32(20)),
		StopTokenIds: []uint32{2, 500, math.MaxUint32},
	}
}

func spec() model.Spec {
	return model.Spec{Name: "toy", Digest: "d1", VocabSize: 500, HiddenSize: 8, Layers: 3, Heads: 2, KVHeads: 1, HeadSize: 4, ContextTokens: 256, BOS: 1, EOS: []int32{2}}
}

func TestParseTask(t *testing.T) {
	deadline := time.Unix(100, 0)
	got, err := worker.ParseTask(goodTask(), spec(), deadline)
	want := scheduler.Request{
		Tokens: []int32{3, 499, 0}, Generated: 1, MaxTokens: 9, Stop: []int32{2}, Salt: "tenant", Priority: -3, Deadline: deadline,
		Sampling: sampler.Params{
			Temperature: 0.5, TopK: 7, TopP: 0.9, MinP: 0.1, Seed: math.MaxUint64,
			RepetitionPenalty: 1.25, PresencePenalty: -2, FrequencyPenalty: 2,
			LogitBias: []sampler.TokenBias{{Token: 0, Bias: 3.5}, {Token: 7, Bias: 100}, {Token: 499, Bias: -100}},
		},
		Logprobs: true, TopLogprobs: 20,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, error %v; want %+v", got, err, want)
	}
	bare := &workerv1.Task{ModelDigest: "d1", TokenIds: []uint32{1}, MaxTokens: 1}
	if got, err := worker.ParseTask(bare, spec(), time.Time{}); err != nil || !reflect.DeepEqual(got.Sampling, sampler.Params{}) || got.Logprobs || !got.Deadline.IsZero() {
		t.Errorf("without envelope and sampling: %+v, error %v", got, err)
	}
}

// biases gives the first n tokens one bias.
func biases(n int, bias float32) map[uint32]float32 {
	out := make(map[uint32]float32, n)
	for id := range n {
		out[uint32(id)] = bias
	}
	return out
}

// TestParseTaskNamesTheField: every refusal but that of the model.
func TestParseTaskNamesTheField(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		name   string
		change func(*workerv1.Task)
		field  string
	}{
		{"no tokens", func(k *workerv1.Task) { k.TokenIds = nil }, "task.token_ids"},
		{"a full context", func(k *workerv1.Task) { k.TokenIds = make([]uint32, 256) }, "task.token_ids"},
		{"first token after the vocabulary", func(k *workerv1.Task) { k.TokenIds[0] = 500 }, "task.token_ids"},
		{"a token that would turn negative", func(k *workerv1.Task) { k.TokenIds[2] = math.MaxUint32 }, "task.token_ids"},
		{"all tokens generated", func(k *workerv1.Task) { k.Generated = 3 }, "task.generated"},
		{"absurdly many generated", func(k *workerv1.Task) { k.Generated = math.MaxUint32 }, "task.generated"},
		{"nothing to generate", func(k *workerv1.Task) { k.MaxTokens = 1 }, "task.max_tokens"},
		{"no limit", func(k *workerv1.Task) { k.MaxTokens = 0 }, "task.max_tokens"},
		{"a limit past all numbers", func(k *workerv1.Task) { k.MaxTokens = math.MaxInt32 + 1 }, "task.max_tokens"},
		{"temperature", func(k *workerv1.Task) { k.Sampling.Temperature = new(float32(-1)) }, "task.sampling.temperature"},
		{"temperature that is no number", func(k *workerv1.Task) { k.Sampling.Temperature = &nan }, "task.sampling.temperature"},
		{"top-k", func(k *workerv1.Task) { k.Sampling.TopK = new(uint32(math.MaxUint32)) }, "task.sampling.top_k"},
		{"top-p", func(k *workerv1.Task) { k.Sampling.TopP = new(float32(1.1)) }, "task.sampling.top_p"},
		{"min-p", func(k *workerv1.Task) { k.Sampling.MinP = &nan }, "task.sampling.min_p"},
		{"typical-p", func(k *workerv1.Task) { k.Sampling.TypicalP = &nan }, "task.sampling.typical_p"},
		{"fewest tokens past all numbers", func(k *workerv1.Task) { k.MinTokens = math.MaxInt32 + 1 }, "task.min_tokens"},
		{"repetition penalty", func(k *workerv1.Task) { k.Sampling.RepetitionPenalty = new(float32(-1)) }, "task.sampling.repetition_penalty"},
		{"presence penalty", func(k *workerv1.Task) { k.Sampling.PresencePenalty = &nan }, "task.sampling.presence_penalty"},
		{"frequency penalty", func(k *workerv1.Task) { k.Sampling.FrequencyPenalty = new(float32(3)) }, "task.sampling.frequency_penalty"},
		{"a bias past the vocabulary", func(k *workerv1.Task) { k.Sampling.LogitBias[500] = 1 }, "task.sampling.logit_bias"},
		{"a bias that is no number", func(k *workerv1.Task) { k.Sampling.LogitBias[1] = nan }, "task.sampling.logit_bias"},
		{"more biases than allowed", func(k *workerv1.Task) { k.Sampling.LogitBias = biases(1025, 0) }, "task.sampling.logit_bias"},
		{"every token forbidden", func(k *workerv1.Task) { k.Sampling.LogitBias = biases(500, -100) }, "task.sampling.logit_bias"},
		{"log probabilities", func(k *workerv1.Task) { k.Logprobs = new(uint32(21)) }, "task.logprobs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			task := goodTask()
			c.change(task)
			_, err := worker.ParseTask(task, spec(), time.Time{})
			if status.Code(err) != codes.InvalidArgument || rpc.Field(err) != c.field {
				t.Errorf("error %v names field %q, want %q", err, rpc.Field(err), c.field)
			}
		})
	}
	if _, err := worker.ParseTask(nil, spec(), time.Time{}); rpc.Field(err) != "task" {
		t.Errorf("no task: %v", err)
	}
	other := goodTask()
	other.ModelDigest = "d2"
	if _, err := worker.ParseTask(other, spec(), time.Time{}); status.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != api.ReasonModelMismatch {
		t.Errorf("another model: %v", err)
	}
}

func TestErrorsOfTheScheduler(t *testing.T) {
	for _, c := range []struct {
		reason scheduler.RefuseReason
		code   codes.Code
		says   string
		retry  bool
	}{
		{scheduler.Draining, codes.Unavailable, api.ReasonWorkerDraining, true},
		{scheduler.QueueFull, codes.ResourceExhausted, api.ReasonQueueFull, true},
		{scheduler.NeverFits, codes.InvalidArgument, api.ReasonInvalidField, false},
		{scheduler.Invalid, codes.InvalidArgument, api.ReasonInvalidField, false},
	} {
		err := worker.RefusedError(c.reason)
		if _, retry := rpc.RetryAfter(err); status.Code(err) != c.code || rpc.Reason(err) != c.says || retry != c.retry {
			t.Errorf("refusal %v: %v, reason %q, retry %v", c.reason, err, rpc.Reason(err), retry)
		}
	}
}

func TestErrorsOfConstraints(t *testing.T) {
	for of, reason := range map[error]string{scheduler.ErrNoTokenAllowed: api.ReasonInvalidField, scheduler.ErrConstraintEffort: api.ReasonConstraintEffort} {
		if err := worker.FailedError(of); status.Code(err) != codes.InvalidArgument || rpc.Field(err) != "structured_output" || rpc.Reason(err) != reason {
			t.Errorf("%v: %v, reason %q", of, err, rpc.Reason(err))
		}
	}
}

// FuzzParseTask: no message makes it panic, and what passes is within bounds.
func FuzzParseTask(f *testing.F) {
	for _, task := range []*workerv1.Task{{}, goodTask()} {
		bytes, err := proto.Marshal(task)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes)
	}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		task := new(workerv1.Task)
		if proto.Unmarshal(bytes, task) != nil {
			return
		}
		task.ModelDigest = "d1"
		r, err := worker.ParseTask(task, spec(), time.Time{})
		if err != nil {
			if code := status.Code(err); code != codes.InvalidArgument || rpc.Field(err) == "" {
				t.Fatalf("error %v names no field", err)
			}
			return
		}
		if len(r.Tokens) == 0 || len(r.Tokens) >= spec().ContextTokens || r.Generated < 0 || r.Generated >= len(r.Tokens) || r.MaxTokens <= r.Generated || r.Sampling.Validate() != nil || r.TopLogprobs < 0 || r.TopLogprobs > sampler.MaxTopLogprobs {
			t.Fatalf("passed: %+v", r)
		}
		for _, token := range append(r.Tokens, r.Stop...) {
			if token < 0 || int(token) >= spec().VocabSize {
				t.Fatalf("token %d passed", token)
			}
		}
	})
}

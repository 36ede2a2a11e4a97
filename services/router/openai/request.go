package openai

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/preprocess"
)

// Bounds of requests, beside those of the Backend, which are checked here too before a long list is read.
const (
	maxN       = 128 // answers to one prompt
	maxChoices = 128 // answers to all prompts of a request together
)

// parsedRequest is a request that was translated: one GenerateRequest for each answer.
type parsedRequest struct {
	route    string
	chat     bool      // the answer is to a conversation
	response *response // what a response says of its request; nil: it is no response
	choices  []*inferencev1.GenerateRequest
	n        int  // answers to each prompt; they stand next to each other
	shown    int  // of those, the best, that the client gets; where all are, in their order
	empty    bool // no token is asked for
	// planned has the plans of answers, until they are admitted: of conversations, and if no token is
	// asked for.
	planned map[*inferencev1.GenerateRequest]Plan
	stream  bool
	// usage is said in a last message of a stream, eachUsage in every one.
	usage, eachUsage bool
	logprobs         bool
	top              uint32 // of the likeliest tokens come with each of an answer
	timing           bool   // say where the time went
	ids              bool   // events have ids, by which the stream can be resumed
	// echoes are the prompts to say before the answers, one for each prompt; nil:
	// none. With echoesTokens they are known when the prompts are in tokens.
	echoes       []string
	echoesTokens bool
	// echoTop: so many of the likeliest tokens come with each token of an echo; nil: nothing does.
	// promptTop is the same of vLLM's prompt_logprobs.
	echoTop, promptTop *uint32
	// verbatim is how many values go to the template as they are.
	verbatim int
	// secret that the client chose; "": none.
	secret string
	// tools that answers may call; nil: none.
	tools *toolUse
	// embedding is of a request for embeddings; else nil.
	embedding *embedding
	// limit is the name by which the most tokens were asked for, form that by which a form was.
	limit, form string
}

// refused are fields of vLLM that change what is generated or said of it, and that
// nothing here obeys. They are refused unless they ask for nothing.
var refused = []string{
	"use_beam_search", "bad_words", "allowed_token_ids",
	"prompt_embeds", "truncate_prompt_tokens", "logits_processors", "include_stop_str_in_output",
	"thinking_token_budget", "return_token_ids", "return_tokens_as_token_ids",
}

// ofGRPC are fields of GenerateRequest that HTTP has no way to obey, and whose names no
// other API has: who sends one means it.
var ofGRPC = []string{"slo", "sampling", "token_ids", "no_special_tokens"}

// common translates what completions, chats and responses have in common: how tokens are
// drawn, how many, and how they are sent.
func (c *parsedRequest) common(f *fields) *inferencev1.GenerateRequest {
	q := &inferencev1.GenerateRequest{Model: f.text("model"), CacheSalt: f.text("cache_salt"), Sampling: sampling(f)}
	q.Stop = stops(f)
	if raw, _ := f.raw("stop_token_ids"); f.within("stop_token_ids", raw, preprocess.MaxStopTokens) {
		f.numbers("stop_token_ids", &q.StopTokenIds, "an array of token ids")
	}
	q.IgnoreEos, _ = f.boolean("ignore_eos")
	// vLLM serves the lowest number first, the Backend the highest.
	if p := f.integerIn("priority", -100, 100); p != nil {
		q.Priority = int32(-*p)
	}
	said := tier(f, q)
	if c.response != nil {
		c.response.tier = said
	}
	c.most(f, q)
	c.streaming(f)
	c.n = 1
	if n := f.integerIn("n", 1, maxN); n != nil {
		c.n = int(*n)
	}
	c.shown = c.n
	if c.route != RouteCompletions {
		c.noBest(f)
	}
	c.resumable(f, q)
	if least := f.integerIn("min_tokens", 0, math.MaxInt32); least != nil {
		q.MinTokens = uint32(*least)
	}
	if c.response != nil {
		f.notSupported("is not supported in responses; leave it out", "prompt_logprobs")
	} else if top := f.integerIn("prompt_logprobs", 0, sampler.MaxTopLogprobs); top != nil {
		c.promptTop = proto.Uint32(uint32(*top))
		q.PromptLogprobs = c.promptTop
		if c.stream {
			f.wrong(unsupported("prompt_logprobs", "is not supported with stream: leave one of them out"))
		}
	}
	f.notSupported("is not supported in this version; leave it out", refused...)
	f.notSupported("is of the gRPC API: HTTP has no such field, so leave it out or ask over gRPC", ofGRPC...)
	if skip, given := f.boolean("skip_special_tokens"); given && !skip {
		f.wrong(unsupported("skip_special_tokens", "cannot be false: special tokens are never part of the text; leave it out"))
	}
	return q
}

// tiers are the classes of requests by OpenAI's names, and the name that an answer says; "" is the
// router's default class.
var tiers = map[string]struct{ class, said string }{
	"": {"", "default"}, "auto": {"", "default"}, "scale": {"", "default"}, "default": {routing.ClassStandard, "default"},
	"priority": {routing.ClassInteractive, "priority"}, "fast": {routing.ClassInteractive, "priority"}, "flex": {routing.ClassBatch, "flex"},
}

// tier reads which class a request is of, and returns the name of it that an answer says.
func tier(f *fields, q *inferencev1.GenerateRequest) (said string) {
	name := f.text("service_tier")
	tier, known := tiers[name]
	if !known {
		f.wrong(unsupported("service_tier", fmt.Sprintf("%q is not supported: there are auto, default, scale, priority, fast and flex", clienterr.Shorten(name))))
	} else if tier.class != "" {
		q.Slo = &inferencev1.Slo{Class: tier.class}
	}
	return tier.said
}

// headerSLO is the header with the objective of a request, such as ttft:500ms,tpot:30ms.
const headerSLO = "X-SLO"

// want has the answers held to the objective of a header; "" is none.
func (c *parsedRequest) want(header string) error {
	if header == "" {
		return nil
	}
	o, err := routing.ParseObjective(header)
	if err != nil {
		if short := clienterr.Shorten(header); short != header {
			_, err = routing.ParseObjective(short) // cut off, it is wrong too
		}
		return invalid(headerSLO, err.Error())
	}
	for _, q := range c.choices {
		q.Slo = &inferencev1.Slo{Class: q.GetSlo().GetClass()}
		if o.TTFT > 0 {
			q.Slo.Ttft = durationpb.New(o.TTFT)
		}
		if o.TPOT > 0 {
			q.Slo.Tpot = durationpb.New(o.TPOT)
		}
	}
	return nil
}

// notSupported keeps, as a problem, a field that asks for something.
func (f *fields) notSupported(why string, names ...string) {
	for _, name := range names {
		if raw, given := f.raw(name); given && !slices.Contains(offValues, string(raw)) {
			f.wrong(unsupported(f.at+name, why))
		}
	}
}

// offValues are the values that switch a field off.
var offValues = []string{"false", "0", "[]", "{}", `""`}

// most reads how many tokens to generate at most. The newer name counts.
func (c *parsedRequest) most(f *fields, q *inferencev1.GenerateRequest) {
	names := []string{"max_completion_tokens", "max_tokens"}
	if c.response != nil {
		names = []string{"max_output_tokens"}
	}
	for _, c.limit = range names {
		if !f.has(c.limit) {
			continue
		}
		n := f.integerIn(c.limit, 0, math.MaxInt32)
		if n == nil {
			return
		}
		// One that asks for none is checked as if it asked for one.
		c.empty = *n == 0
		q.MaxTokens = proto.Uint32(uint32(max(1, *n)))
		return
	}
}

func (c *parsedRequest) streaming(f *fields) {
	c.stream, _ = f.boolean("stream")
	c.timing, _ = f.boolean("timing_ms")
	if options := f.object("stream_options"); options != nil {
		c.usage, _ = options.boolean("include_usage")
		c.eachUsage, _ = options.boolean("continuous_usage_stats")
		options.boolean("include_obfuscation") // nothing is obfuscated
		options.ignoreOthers()
		c.eachUsage = c.eachUsage && c.usage
	}
}

func sampling(f *fields) *inferencev1.Sampling {
	s := &inferencev1.Sampling{
		Temperature: f.number("temperature"), TopP: f.number("top_p"), MinP: f.number("min_p"), TypicalP: f.number("typical_p"),
		RepetitionPenalty: f.number("repetition_penalty"), PresencePenalty: f.number("presence_penalty"), FrequencyPenalty: f.number("frequency_penalty"),
		LogitBias: biases(f),
	}
	if k := f.integerIn("top_k", -1, math.MaxInt32); k != nil {
		s.TopK = proto.Uint32(uint32(max(0, *k))) // -1 keeps all, as 0 does
	}
	s.Seed = f.seed("seed")
	return s
}

// biases reads logit_bias. A bias of 0 has no effect, whatever it names.
func biases(f *fields) map[uint32]float32 {
	members := f.object("logit_bias")
	if members == nil {
		return nil
	}
	out := make(map[uint32]float32)
	for _, name := range slices.Sorted(maps.Keys(members.members)) {
		var bias *float32
		if json.Unmarshal(members.members[name], &bias) != nil {
			f.wrong(refuse("logit_bias", codeType, fmt.Sprintf("the bias of %q has to be a number", clienterr.Shorten(name))))
			return nil
		}
		if bias == nil || *bias == 0 {
			continue
		}
		id, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			f.wrong(invalid("logit_bias", fmt.Sprintf("%q is not a token id", clienterr.Shorten(name))))
			return nil
		}
		if out[uint32(id)] = *bias; len(out) > sampler.MaxLogitBiases {
			f.wrong(invalid("logit_bias", fmt.Sprintf("has more than %d tokens", sampler.MaxLogitBiases)))
			return nil
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// stops reads stop: one text or several.
func stops(f *fields) []string {
	raw, ok := f.raw("stop")
	if !ok {
		return nil
	}
	if raw[0] == '"' {
		return []string{f.text("stop")}
	}
	return f.texts("stop", "a string or an array of strings", preprocess.MaxStops)
}

// texts reads an array of strings, at most so many.
func (f *fields) texts(name, want string, most int) []string {
	if raw, _ := f.raw(name); !f.within(name, raw, most) {
		return nil
	}
	var read []*string
	if !f.decode(name, &read, want) {
		return nil
	}
	out := make([]string, len(read))
	for i, text := range read {
		if text == nil {
			f.wrong(wrongType(fmt.Sprintf("%s%s[%d]", f.at, name, i), "a string, not null"))
			return nil
		}
		out[i] = *text
	}
	return out
}

// numbers reads token ids, or lists of them. encoding/json would make 0 of null.
func (f *fields) numbers(name string, out any, want string) {
	if !f.decode(name, out, want) {
		return
	}
	if path := nullIn(f.members[name]); path != "" {
		f.wrong(wrongType(f.at+name+path, "a token id, not null"))
	}
}

// repeat makes the answers of each prompt: each after the first has a seed of its
// own, so that they differ.
func (c *parsedRequest) repeat(prompts []*inferencev1.GenerateRequest) {
	c.top = prompts[0].GetLogprobs()
	for _, q := range prompts {
		for i := range c.n {
			choice := q
			if i > 0 {
				choice = shallow(q)
				choice.PromptLogprobs = nil // the first answer's are those of all
				if choice.GetSampling().Seed != nil {
					choice.Sampling = shallow(q.GetSampling())
					choice.Sampling.Seed = proto.Uint64(q.GetSampling().GetSeed() + uint64(i))
				}
			}
			c.choices = append(c.choices, choice)
		}
	}
}

// shallow is a copy of a message that shares its lists, maps and inner messages, which may be large:
// nobody may change them.
func shallow[M proto.Message](m M) M {
	from := m.ProtoReflect()
	to := from.New()
	from.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		to.Set(field, value)
		return true
	})
	out, _ := to.Interface().(M)
	return out
}

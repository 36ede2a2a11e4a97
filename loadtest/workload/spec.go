package workload

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/loadtest/workload/trace"
)

// Kinds of prompts.
const (
	KindIDs  = "ids"
	KindText = "text"
)

// Spec is the load to generate. Register its flags or set all fields with defaults, then
// call Validate, then other methods. Not for concurrent use.
type Spec struct {
	// Arrival is Poisson, Gamma, Constant or Ramp; Burstiness is Gamma's shape, RampFrom
	// a ramp's first rate, requests per second.
	Arrival    string
	Burstiness float64
	RampFrom   float64
	// surges change the rate for a while in open loop, beside a ramp.
	surges surges

	// PromptTokens and OutputTokens are the lengths. Unset: 512 and 128, or the trace's
	// if the other is empirical.
	PromptTokens, OutputTokens Distribution
	// PromptKind is KindIDs or KindText. Empty: ids if the server accepts them and its
	// vocabulary is known.
	PromptKind string
	// TextFile is the source of text prompts. Empty: random words.
	TextFile string
	// CharsPerToken is the assumed bytes of text per token.
	CharsPerToken float64
	// SharedPrefixTokens is the length of the system prompts, one of SharedPrefixes of
	// which begins each conversation.
	SharedPrefixTokens, SharedPrefixes int

	// Turns per conversation; unset: 1, or all of a recorded one. Think is the time from
	// an answer to the next turn; unset: none.
	Turns, Think Distribution

	// Trace is a file of recorded traffic; empty: none. TraceFormat is a trace.Format.
	// Speed divides its times, TraceLimit is the number of requests to use, 0 for all,
	// and TraceScale multiplies its lengths.
	Trace       string
	TraceFormat string
	Speed       float64
	TraceLimit  int
	TraceScale  float64

	// Parameters of every request.
	Temperature       float32
	Priority          int32
	Tenant, CacheSalt string
	// Exact forces the requested output length.
	Exact bool
	// Seed of all randomness. If 0, Validate chooses one, so that a second run does not
	// find the first one's prompts in the server's prefix cache.
	Seed uint64
	// VocabularySize and ContextTokens apply if the server reports none; otherwise the
	// smaller one counts.
	VocabularySize, ContextTokens int

	classes classes
	// Set by Validate.
	format    trace.Format
	prose     *prose
	empirical []lengths
}

// lengths are those of one request.
type lengths struct{ prompt, output int }

// RegisterFlags registers the flags with their defaults.
func (s *Spec) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Arrival, "arrival", Poisson, "arrival process in open loop: poisson, gamma, constant, or ramp (linear over the duration, from --ramp-from to the rate)")
	fs.Float64Var(&s.Burstiness, "burstiness", 1, "shape of --arrival gamma, as vLLM's flag of this name: 1 is Poisson, less is burstier, more is more regular")
	fs.Float64Var(&s.RampFrom, "ramp-from", 0, "start rate of --arrival ramp, in requests per second")
	fs.Var(&s.surges, "surge", "multiply the rate for a while, repeated for each: "+surgeForm+", counted from the start of the run; 0 is a pause")
	fs.Var(distributionFlag{&s.PromptTokens, ParseLengths, "LENGTHS"}, "prompt-tokens", "tokens of a prompt, or of each turn of a conversation: 512, uniform:100-900, normal:MEAN,SD, lognormal:MEAN,SD, exp:MEAN, or empirical (drawn from --trace and sent at the rate) (default 512)")
	fs.Var(distributionFlag{&s.OutputTokens, ParseLengths, "LENGTHS"}, "output-tokens", "tokens of an answer, in the same forms (default 128)")
	fs.StringVar(&s.PromptKind, "prompt-kind", "", "content of prompts: ids (uniform over the vocabulary) or text (default: ids, if the server takes them and its vocabulary is known)")
	fs.StringVar(&s.TextFile, "text-file", "", "file from which text prompts are cut (default: sentences of common words)")
	fs.Float64Var(&s.CharsPerToken, "chars-per-token", 4, "assumed bytes of text per token; the report shows what the server counted")
	fs.IntVar(&s.SharedPrefixTokens, "shared-prefix-tokens", 0, "tokens of a system prompt that many requests share, before each prompt's own")
	fs.IntVar(&s.SharedPrefixes, "shared-prefixes", 1, "number of different system prompts, each equally likely")
	fs.Var(distributionFlag{&s.Turns, ParseTurns, "NUMBERS"}, "turns", "turns of a conversation: 4, uniform:1-8, normal:MEAN,SD, lognormal:MEAN,SD or exp:MEAN; the rate counts conversations (default 1, or all turns of a recorded one)")
	fs.Var(distributionFlag{&s.Think, ParseTimes, "DURATIONS"}, "think", "time from an answer to the user's next turn: 2s, uniform:1s-10s, normal:MEAN,SD, lognormal:MEAN,SD or exp:MEAN (default none)")
	fs.StringVar(&s.Trace, "trace", "", "file of recorded traffic to replay, in a format of --trace-format")
	fs.StringVar(&s.TraceFormat, "trace-format", string(trace.Auto), "format of --trace: auto, azure (CSV), mooncake (JSON lines with hash ids) or sharegpt (JSON without times, sent at the rate)")
	fs.Float64Var(&s.Speed, "speed", 1, "speed at which to replay a trace, as a multiple of the recorded one")
	fs.IntVar(&s.TraceLimit, "trace-limit", 0, "maximum requests or conversations to use, from the start of the trace; 0: all")
	fs.Float64Var(&s.TraceScale, "trace-scale-lengths", 1, "factor for the trace's lengths and shared blocks, to fit a smaller model")
	fs.Var(&s.classes, "class", "a class of requests, repeated for each: "+classForm)
	fs.Float32Var(&s.Temperature, "temperature", 0, "sampling temperature; 0: always the likeliest token")
	fs.Int32Var(&s.Priority, "priority", 0, "priority of requests, if the server knows priorities")
	fs.StringVar(&s.Tenant, "tenant", "", "tenant of requests, if the server knows tenants")
	fs.StringVar(&s.CacheSalt, "cache-salt", "", "share prefixes only among requests with this salt, if the server knows salts")
	fs.BoolVar(&s.Exact, "exact", true, "generate all output tokens wanted, even if the model would stop earlier")
	fs.Uint64Var(&s.Seed, "seed", 0, "random seed of arrivals, lengths and prompts; the same seed repeats a run, and finds its prompts cached (default: a new seed, which the report names)")
	fs.IntVar(&s.VocabularySize, "vocabulary-size", 0, "size of the vocabulary for prompts of ids (default: the server's)")
	fs.IntVar(&s.ContextTokens, "context-tokens", 0, "maximum tokens of a prompt and its answer together (default: the server's context)")
}

// blockTokens is the scaled number of tokens of one hash id in a trace.
func (s *Spec) blockTokens() int { return int(math.Round(trace.BlockTokens * s.TraceScale)) }

// OwnTimes reports whether a trace determines when requests are due.
func (s *Spec) OwnTimes() bool { return s.replays() && s.format.Timed() }

// MeanRate is the mean offered requests per second without surges, counting conversations
// once; 0 in closed loop and if a trace determines times.
func (s *Spec) MeanRate(p Params) float64 {
	switch {
	case p.Concurrency > 0 || s.OwnTimes():
		return 0
	case s.Arrival == Ramp:
		return (s.RampFrom + p.Rate) / 2
	default:
		return p.Rate
	}
}

// Surges reports whether the rate changes for a while.
func (s *Spec) Surges() bool { return len(s.surges) > 0 }

// ClassNames returns the classes' names in order, empty without classes.
func (s *Spec) ClassNames() []string {
	names := make([]string, 0, len(s.classes))
	for _, class := range s.classes {
		names = append(names, class.name)
	}
	return names
}

// ClassShares is each class's share of the requests; nil without classes.
func (s *Spec) ClassShares() map[string]float64 {
	if len(s.classes) == 0 {
		return nil
	}
	total, shares := s.classes.weight(), map[string]float64{}
	for _, class := range s.classes {
		shares[class.name] = class.weight / total
	}
	return shares
}

// replays reports whether the trace's requests are sent, rather than only its lengths used.
func (s *Spec) replays() bool { return s.Trace != "" && !s.usesEmpirical() }

// conversations reports whether a trace's texts are sent.
func (s *Spec) conversations() bool { return s.replays() && s.format == trace.ShareGPT }

func (s *Spec) usesEmpirical() bool {
	uses := s.PromptTokens.Empirical() || s.OutputTokens.Empirical()
	for _, class := range s.classes {
		uses = uses || class.prompt.Empirical() || class.output.Empirical()
	}
	return uses
}

// distributions are a class's length distributions.
func (s *Spec) distributions(class int) (prompt, output Distribution) {
	prompt, output = s.PromptTokens, s.OutputTokens
	if len(s.classes) > 0 {
		if own := s.classes[class].prompt; own.IsSet() {
			prompt = own
		}
		if own := s.classes[class].output; own.IsSet() {
			output = own
		}
	}
	if !prompt.IsSet() {
		prompt = Distribution{text: "512", shape: fixed, a: 512}
		if output.Empirical() {
			prompt = output
		}
	}
	if !output.IsSet() {
		output = Distribution{text: "128", shape: fixed, a: 128}
		if prompt.Empirical() {
			output = prompt
		}
	}
	return prompt, output
}

// draw returns one request's lengths. Empirical ones come from a single request of the
// trace.
func (s *Spec) draw(random *rand.Rand, class int) lengths {
	prompt, output := s.distributions(class)
	var recorded lengths
	if prompt.Empirical() || output.Empirical() {
		recorded = s.empirical[random.IntN(len(s.empirical))]
	}
	if !prompt.Empirical() {
		recorded.prompt = prompt.count(random)
	}
	if !output.Empirical() {
		recorded.output = output.count(random)
	}
	return recorded
}

// openTrace opens the trace. Its error begins with the flag, unless that is right and a place in
// the file is invalid.
func (s *Spec) openTrace(format trace.Format) (*trace.File, error) {
	file, err := trace.Open(s.Trace, format)
	switch _, invalid := errors.AsType[*trace.SyntaxError](err); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("--trace: %w: name a file of recorded traffic", err)
	case err != nil && !invalid:
		return nil, fmt.Errorf("--trace: %w", err)
	}
	return file, err
}

// TraceEnds is when the last request of a trace with OwnTimes is due, counted from the start of
// the run. It reads the used part of the trace.
func (s *Spec) TraceEnds() (ends time.Duration, err error) {
	file, err := s.openTrace(s.format)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	for n := 0; s.TraceLimit <= 0 || n < s.TraceLimit; n++ {
		entry, err := file.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		ends = max(ends, time.Duration(min(float64(entry.At)/s.Speed, math.MaxInt64/2)))
	}
	return ends, nil
}

// maxEmpirical is how many of a trace's requests lengths are drawn from.
const maxEmpirical = 100_000

// readLengths reads the lengths of the trace's first requests.
func (s *Spec) readLengths() ([]lengths, error) {
	file, err := s.openTrace(s.format)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	limit := maxEmpirical
	if s.TraceLimit > 0 {
		limit = min(limit, s.TraceLimit)
	}
	var all []lengths
	for len(all) < limit {
		entry, err := file.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		l := lengths{entry.PromptTokens, entry.OutputTokens}
		if len(entry.Turns) > 0 {
			l = lengths{s.prose.tokens(entry.System) + s.prose.tokens(entry.Turns[0].User), s.prose.tokens(entry.Turns[0].Reply)}
		}
		all = append(all, lengths{s.scale(l.prompt), s.scale(l.output)})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no requests to draw lengths from", s.Trace)
	}
	return all, nil
}

// scale scales a trace's length, at least to 1.
func (s *Spec) scale(tokens int) int {
	return int(math.Round(min(max(float64(tokens)*s.TraceScale, 1), maxCount)))
}

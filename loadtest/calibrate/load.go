package calibrate

import (
	"context"
	"encoding/gob"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// seen is the report of the generator's process. Times are since Start, nanoseconds on
// the machine's monotonic clock.
type seen struct {
	Start    int64
	From, To time.Duration
	Requests []request
	Client   record.Client
	// CPUShare of its cores between From and To.
	CPUShare float64
}

// request is a client's report of one request.
type request struct {
	ID                         string
	Completed                  bool
	Error                      string
	Due, Dispatched, Sent, End time.Duration
	Arrivals                   []time.Duration
}

// Load holds the plan's streams against the fake server at address and writes its report
// to out. It fails if ctx ends.
func Load(ctx context.Context, p Plan, address string, out io.Writer) error {
	server, err := dial(p, address)
	if err != nil {
		return err
	}
	defer server.Close()
	if _, err := server.Describe(ctx); err != nil {
		return err
	}
	run, err := drive.Run(ctx, drive.Options{
		Client: server, Source: newPoisson(p), Offered: p.rate(),
		Warmup: p.length(), Duration: p.Duration, DrainTimeout: 2*p.length() + 5*time.Second,
		InFlightLimit: 2*p.Streams + 1000,
	})
	if err != nil {
		return err
	}
	if run.Interrupted {
		return errors.Join(ctx.Err(), errors.New("interrupted"))
	}
	s := seen{Start: monotonic(run.Began), From: run.From, To: run.To, Client: run.Client, CPUShare: run.CPUShare()}
	for _, r := range run.Records {
		q := request{
			ID: r.ID, Completed: r.Outcome == record.Completed, Error: r.Error,
			Due: r.Due, Dispatched: r.Dispatched, Sent: r.Sent, End: r.End, Arrivals: make([]time.Duration, len(r.Arrivals)),
		}
		for i, a := range r.Arrivals {
			q.Arrivals[i] = a.At
		}
		s.Requests = append(s.Requests, q)
	}
	return gob.NewEncoder(out).Encode(s)
}

func dial(p Plan, address string) (client.Client, error) {
	if p.HTTP {
		return client.NewOpenAI(client.OpenAIConfig{URL: "http://" + address, TokenIDs: true, VocabularySize: vocabularySize})
	}
	return client.NewTandem(client.TandemConfig{Address: address, Connections: p.Connections})
}

// vocabularySize bounds the prompts' token ids.
const vocabularySize = 1 << 15

// poisson is a source of independent requests.
type poisson struct {
	plan   Plan
	chance *rand.Rand
	prompt []uint32
	due    float64 // seconds
}

func newPoisson(p Plan) *poisson {
	s := &poisson{plan: p, chance: rand.New(rand.NewPCG(p.Seed, 1))}
	for range p.PromptTokens {
		s.prompt = append(s.prompt, s.chance.Uint32N(vocabularySize))
	}
	return s
}

func (s *poisson) Next() (*workload.Request, error) {
	s.due += s.chance.ExpFloat64() / s.plan.rate()
	return &workload.Request{
		Due: time.Duration(s.due * float64(time.Second)), MaxTokens: s.plan.TokensPerStream, Exact: true,
		Prompt: workload.Prompt{TokenIDs: s.prompt},
	}, nil
}

// Package evidence makes docs/evidence.md: what the claim rests on (prefill and decode apart
// meet more SLOs), measured on virtual time, beside the figures of the papers, and what the
// figures must be within for CI.
//
// Each file has a Section, or what several of them use. Commands import it. It starts
// goroutines that run simulations, and waits for them before it returns.
package evidence

import "context"

// Section measures one part of the page.
type Section interface {
	// Name is what --section takes, Title the heading of its part of the page.
	Name() string
	Title() string
	// Run measures it. An end of ctx is an error.
	Run(ctx context.Context, o Options) (*Result, error)
}

// Sections are all, in the order of the page.
func Sections() []Section {
	return []Section{
		distServe{},
		splitwise{}, mooncake{},
		placements{tight}, placements{loose},
		policies{}, day{},
		live{}, queues{},
		scale{},
	}
}

// Options say how much to measure.
type Options struct {
	// Small is the version that CI runs: seconds a section instead of minutes.
	Small bool
	// Long adds runs that take longer than all others together.
	Long bool
	// Profiles is the folder of step times, docs/profiles of a checkout.
	Profiles string
	// Traces is a folder with recorded traffic; empty: there is none, and nothing that needs it
	// is measured.
	Traces string
	// Say tells how far a section is; nil: nobody listens. It may be called concurrently.
	Say func(text string)
}

func (o Options) say(text string) {
	if o.Say != nil {
		o.Say(text)
	}
}

// Result is what a section measured. Its JSON is public.
type Result struct {
	Section string `json:"section"`
	Title   string `json:"title"`
	// Intro are paragraphs before the tables, Notes are below: what was found, and what the
	// figures do not say.
	Intro    []string  `json:"intro,omitempty"`
	Tables   []Table   `json:"tables,omitempty"`
	Pictures []Picture `json:"pictures,omitempty"`
	Notes    []string  `json:"notes,omitempty"`
	// FromTraces are tables that need recorded traffic. They stay from the last run that had it.
	FromTraces []Table `json:"from_traces,omitempty"`
	// Ratios are the headline figures.
	Ratios []Ratio `json:"ratios,omitempty"`
	// WallSeconds is how long it took.
	WallSeconds float64 `json:"wall_s"`
}

// Table is figures with the command that makes them again.
type Table struct {
	Title   string     `json:"title"`
	Command string     `json:"command"`
	Header  []string   `json:"header"`
	Rows    [][]string `json:"rows"`
	// Note stands below; Markdown.
	Note string `json:"note,omitempty"`
}

// Picture is an SVG file beside the page.
type Picture struct {
	// Name is that of its file in docs/images, without the ending; Alt is what it shows.
	Name string `json:"name"`
	Alt  string `json:"alt"`
	SVG  []byte `json:"-"`
}

// Ratio is a headline figure that CI watches.
type Ratio struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	// Noise is how far the value may be from the committed one, either way: it covers other
	// seeds and, where it was measured live, other machines.
	Noise float64 `json:"noise"`
	// Paper is the figure that others published for it; empty: none.
	Paper string `json:"paper,omitempty"`
}

// Package evidence makes docs/evidence.md. It measures on virtual time whether prefill and
// decode on separate workers meet more SLOs, compares the figures with those of papers and of
// live meshes, and gives CI their bounds.
//
// Each file has a Section, or code that several of them share. Commands import it. It starts
// goroutines that run simulations, and processes that are live meshes, and waits for them before
// it returns.
package evidence

import "context"

// Section measures one part of the page.
type Section interface {
	// Name is its name in --section, Title its heading on the page.
	Name() string
	Title() string
	// Run measures it. If ctx ends, it returns an error.
	Run(ctx context.Context, o Options) (*Result, error)
}

// Sections returns all sections, in the order of the page.
func Sections() []Section {
	return []Section{
		placements{tight}, placements{loose}, random{},
		policies{}, day{},
		distServe{}, splitwise{}, mooncake{},
		live{}, queues{}, scale{},
	}
}

// Options select how much to measure.
type Options struct {
	// Small is the version that CI runs: seconds a section instead of minutes.
	Small bool
	// Long adds runs that take longer than all others together.
	Long bool
	// Profiles is the folder of step times, docs/profiles of a checkout.
	Profiles string
	// Traces is a folder with recorded traffic. If it is empty, tables that need traffic keep
	// their last figures.
	Traces string
	// Say reports the progress of a section. It may be nil, and may be called concurrently.
	Say func(text string)
}

func (o Options) say(text string) {
	if o.Say != nil {
		o.Say(text)
	}
}

// Result is the result of a section. Its JSON is public.
type Result struct {
	Section string `json:"section"`
	Title   string `json:"title"`
	// Intro has the paragraphs before the tables, Notes those below: findings, and what the
	// figures do not show.
	Intro    []string  `json:"intro,omitempty"`
	Tables   []Table   `json:"tables,omitempty"`
	Pictures []Picture `json:"pictures,omitempty"`
	Notes    []string  `json:"notes,omitempty"`
	// FromTraces are tables that need recorded traffic. They stay from the last run that had it.
	FromTraces []Table `json:"from_traces,omitempty"`
	// Ratios are the headline figures.
	Ratios []Ratio `json:"ratios,omitempty"`
	// WallSeconds is the time that the section took.
	WallSeconds float64 `json:"wall_s"`
}

// Table holds figures and the command that repeats them.
type Table struct {
	Title string `json:"title"`
	// Command is set by Run, unless a section does.
	Command string     `json:"command"`
	Header  []string   `json:"header"`
	Rows    [][]string `json:"rows"`
	// Note goes below the table, in Markdown.
	Note string `json:"note,omitempty"`
}

// Picture is an SVG file beside the page.
type Picture struct {
	// Name is its file in docs/images without the ending, Alt a description.
	Name string `json:"name"`
	Alt  string `json:"alt"`
	SVG  []byte `json:"-"`
}

// Ratio is a headline figure that CI watches.
type Ratio struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	// Noise is how far the value may differ from the committed one, either way. It covers
	// other seeds and, for live measurements, other machines.
	Noise float64 `json:"noise"`
	// Rounds says how many rounds gave no value, if some did: the value is that of the others.
	Rounds string `json:"rounds,omitempty"`
	// Paper is the published figure; empty if there is none.
	Paper string `json:"paper,omitempty"`
}

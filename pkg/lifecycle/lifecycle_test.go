package lifecycle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// record is what happened, in order.
type record struct {
	mu     sync.Mutex
	events []string
}

func (r *record) add(format string, arguments ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf(format, arguments...))
}

// service records its life. Its Run waits for its context.
func (r *record) service(name string) lifecycle.Service {
	return lifecycle.Service{
		Name:  name,
		Start: func(context.Context) error { r.add("start %s", name); return nil },
		Run: func(ctx context.Context) error {
			<-ctx.Done()
			r.add("end %s", name)
			return ctx.Err()
		},
		Stop:  func(context.Context) error { r.add("stop %s", name); return nil },
		Close: func() error { r.add("close %s", name); return nil },
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestRunStopsInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &record{}
		ctx, cancel := context.WithCancel(t.Context())
		a, b := r.service("a"), r.service("b")
		b.Stop = func(context.Context) error {
			time.Sleep(time.Second) // virtual: Run must not have ended meanwhile
			r.add("stop b")
			return nil
		}
		time.AfterFunc(time.Minute, cancel)
		err := lifecycle.Run(ctx, quiet(), 10*time.Second, a, b, lifecycle.Service{Name: "empty"})
		if err != nil {
			t.Error(err)
		}
		want := []string{"start a", "start b", "stop b", "end b", "stop a", "end a", "close b", "close a"}
		if !slices.Equal(r.events, want) {
			t.Errorf("got %v, want %v", r.events, want)
		}
	})
}

func TestRunReturnsTheFirstError(t *testing.T) {
	boom := errors.New("boom")
	for _, test := range []struct {
		name   string
		change func(*lifecycle.Service)
		want   []string // events, "b" being the service that fails
		text   string
		is     error
	}{
		{"start", func(s *lifecycle.Service) { s.Start = func(context.Context) error { return boom } },
			[]string{"start a", "stop a", "close c", "close b", "close a"}, "start b: boom", boom},
		{"start panics", func(s *lifecycle.Service) { s.Start = func(context.Context) error { panic("ouch") } },
			[]string{"start a", "stop a", "close c", "close b", "close a"}, "start b: panic: ouch", nil},
		{"run", func(s *lifecycle.Service) { s.Run = func(context.Context) error { return boom } },
			[]string{"start a", "start b", "start c", "stop c", "end c", "stop b", "stop a", "end a", "close c", "close b", "close a"}, "run b: boom", boom},
		{"run panics", func(s *lifecycle.Service) { s.Run = func(context.Context) error { panic("ouch") } },
			[]string{"start a", "start b", "start c", "stop c", "end c", "stop b", "stop a", "end a", "close c", "close b", "close a"}, "run b: panic: ouch", nil},
		{"run ends well", func(s *lifecycle.Service) { s.Run = func(context.Context) error { return nil } },
			[]string{"start a", "start b", "start c", "stop c", "end c", "stop b", "stop a", "end a", "close c", "close b", "close a"}, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &record{}
				b := r.service("b")
				test.change(&b)
				var log bytes.Buffer
				err := lifecycle.Run(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), time.Second, r.service("a"), b, r.service("c"))
				if test.text == "" && err != nil || test.text != "" && (err == nil || err.Error() != test.text) {
					t.Errorf("got error %v, want %q", err, test.text)
				}
				if panics := strings.Contains(test.text, "panic: "); panics != strings.Contains(log.String(), "service=b panic=ouch stack=") {
					t.Errorf("it logs %q", &log)
				}
				if test.is != nil && !errors.Is(err, test.is) {
					t.Errorf("%v does not wrap %v", err, test.is)
				}
				if !slices.Equal(r.events, test.want) {
					t.Errorf("got %v, want %v", r.events, test.want)
				}
			})
		})
	}
}

// A Stop that needs two more seconds once its context has ended, to say goodbye, has them.
func TestRunStopHasGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := lifecycle.Run(t.Context(), quiet(), 30*time.Second, lifecycle.Service{
			Name: "late",
			Run:  func(context.Context) error { return nil },
			Stop: func(ctx context.Context) error {
				<-ctx.Done()
				<-time.After(2 * time.Second)
				return nil
			},
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestRunStopTimeoutBoundsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &record{}
		release := make(chan struct{})
		slow, deaf := r.service("slow"), r.service("deaf")
		slow.Stop = func(ctx context.Context) error { <-ctx.Done(); r.add("stop slow"); return ctx.Err() }
		deaf.Stop = func(context.Context) error { <-release; return nil }
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := make(chan time.Time, 1)
		time.AfterFunc(time.Minute, func() { cancelled <- time.Now(); cancel() })
		err := lifecycle.Run(ctx, quiet(), 10*time.Second, r.service("last"), slow, deaf)
		if took := time.Since(<-cancelled); took != 13*time.Second {
			t.Errorf("stopping took %s, want the timeout and one grace", took)
		}
		if err == nil || !strings.Contains(err.Error(), "stop deaf: still busy after 10s") {
			t.Errorf("got %v", err)
		}
		if got := r.events[len(r.events)-7:]; !slices.Equal(got, []string{"stop slow", "end slow", "stop last", "end last", "close deaf", "close slow", "close last"}) {
			t.Errorf("got %v: the others were not stopped", got)
		}
		close(release)
	})
}

func TestRunWhenAskedToStopWhileStarting(t *testing.T) {
	r := &record{}
	ctx, cancel := context.WithCancel(t.Context())
	b := r.service("b")
	b.Start = func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() }
	if err := lifecycle.Run(ctx, quiet(), time.Second, r.service("a"), b, r.service("c")); err != nil {
		t.Error(err)
	}
	if want := []string{"start a", "stop a", "close c", "close b", "close a"}; !slices.Equal(r.events, want) {
		t.Errorf("got %v, want %v", r.events, want)
	}
}

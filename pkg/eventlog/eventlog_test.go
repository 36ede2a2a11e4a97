package eventlog_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/eventlog"
)

type (
	// counter is what the core of these tests begins with: it adds what it is told to what
	// Start says, and says the sum.
	counter struct{ Start func(name string) int }
	add     struct {
		What    int
		Comment string
	}
	sum struct {
		Is     int
		Long   []int32
		Length int
	}
)

func newCodecs(t testing.TB) eventlog.Codecs {
	t.Helper()
	codec, err := eventlog.NewCodec(counter{}, add{}, sum{})
	if err != nil {
		t.Fatal(err)
	}
	return eventlog.Codecs{"counter": codec}
}

func (c counter) handle(event any) []any {
	what := event.(add).What
	return []any{sum{c.Start("start") + what, make([]int32, what), what}}
}

// record writes a log of some events, and returns what stands in the process's log.
func record(t testing.TB, path string, limit int64, events ...add) (said string) {
	t.Helper()
	var out bytes.Buffer
	log, err := eventlog.Create(path, eventlog.Options{Codecs: newCodecs(t), Build: "a build", Limit: limit, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	core, c := eventlog.Begin(log, "counter", counter{func(string) int { return 100 }})
	for _, e := range events {
		core.Actions(c.handle(core.Event(log.Now(), e)))
	}
	core.End()
	_ = log.Close() // which has said it
	return out.String()
}

// replay replays a log with cores that add one more to every offset-th event, if that is not 0.
func replay(t testing.TB, data []byte, offset uint64) (events uint64, different *eventlog.Difference, why string, err error) {
	t.Helper()
	reader, err := eventlog.NewReader(bytes.NewReader(data), newCodecs(t))
	if err != nil {
		return 0, nil, "", err
	}
	var c counter
	for {
		r, err := reader.Next()
		switch {
		case errors.Is(err, io.EOF):
			return events, nil, reader.Why, nil
		case err != nil:
			return events, nil, "", err
		case r.Kind != "":
			c = r.Config.(counter)
			continue
		case r.End:
			continue
		}
		events = r.Number
		actions := c.handle(r.Event)
		if events == offset {
			actions = append(actions, sum{Is: 1})
		}
		if d, _ := r.Same(actions, nil); d != nil {
			return events, d, "", nil
		}
	}
}

func someEvents(n int) (events []add) {
	for i := range n {
		events = append(events, add{i, strings.Repeat("a word ", i)})
	}
	return events
}

func TestReplay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if said := record(t, path, 1<<20, someEvents(100)...); said != "" {
		t.Errorf("recording said %s", said)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if events, d, why, err := replay(t, data, 0); events != 100 || d != nil || why != "" || err != nil {
		t.Errorf("%d events, difference %v, %q, %v", events, d, why, err)
	}
	events, d, _, err := replay(t, data, 50)
	if events != 50 || d == nil || err != nil {
		t.Fatalf("%d events, difference %v, %v", events, d, err)
	}
	want := []string{
		`  calls function 0, func(string) int: ("start") = (100)`,
		`  eventlog_test.sum{Is: 149, Long: (49 numbers with checksum b390fec9), Length: 49}`,
		`+ eventlog_test.sum{Is: 1}`,
	}
	if got := eventlog.Diff(d.Expected, d.Got); !slices.Equal(got, want) {
		t.Errorf("the difference is\n%s\nand not\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !strings.HasPrefix(strings.Join(d.Event, "\n"), "eventlog_test.add{\n  What: 49\n") {
		t.Errorf("the event is %q", d.Event)
	}
}

// The file stays within its limit, says that it is not complete, and what it holds can be
// replayed.
func TestLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	const limit = 64 << 10
	var events []add
	for i := range 20000 {
		events = append(events, add{40, fmt.Sprintf("%x", uint64(i)*0x9e3779b97f4a7c15)})
	}
	said := record(t, path, limit, events...)
	if strings.Count(said, "\n") != 1 || !strings.Contains(said, "limit") {
		t.Errorf("recording said %q", said)
	}
	data, err := os.ReadFile(path)
	if err != nil || len(data) > limit {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	if _, d, why, err := replay(t, data, 0); d != nil || !strings.Contains(why, "limit") || err != nil {
		t.Errorf("difference %v, %q, %v", d, why, err)
	}
}

// A log that cannot be written as fast as events come ends, and nobody waits.
func TestSlowDisk(t *testing.T) {
	var out bytes.Buffer
	log := eventlog.Stuck(newCodecs(t), slog.New(slog.NewTextHandler(&out, nil)))
	core, c := eventlog.Begin(log, "counter", counter{func(string) int { return 100 }})
	long := strings.Repeat("x", 1<<20)
	for range 100 {
		core.Actions(c.handle(core.Event(time.Now(), add{1, long})))
	}
	if n := eventlog.Waiting(log); n < 32<<20 || n > 40<<20 {
		t.Errorf("%d bytes wait", n)
	}
	if said := out.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "too slow") {
		t.Errorf("recording said %q", said)
	}
}

// Long events leave no long buffers behind.
func TestLongEvents(t *testing.T) {
	log, err := eventlog.Create(filepath.Join(t.TempDir(), "log"), eventlog.Options{Codecs: newCodecs(t), Limit: 1 << 30, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	core, c := eventlog.Begin(log, "counter", counter{func(string) int { return 100 }})
	for range 5 {
		core.Actions(c.handle(core.Event(log.Now(), add{1, strings.Repeat("x", 5<<20)})))
		core.Actions(c.handle(core.Event(log.Now(), add{1, strings.Repeat("x", 200<<10)})))
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if n := eventlog.Spare(log); n > 4<<20 {
		t.Errorf("%d bytes are kept", n)
	}
	if n := eventlog.Waiting(log); n != 0 {
		t.Errorf("%d bytes wait for nobody", n)
	}
}

// A reader keeps nothing of cores that have ended, and little of functions.
func TestReaderKeepsLittle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := eventlog.Create(path, eventlog.Options{Codecs: newCodecs(t), Limit: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	with := counter{func(string) int { return 100 }}
	long, _ := eventlog.Begin(log, "counter", with)
	for range 100 {
		short, _ := eventlog.Begin(log, "counter", with)
		short.End()
		long.Event(log.Now(), with)
		long.Actions([]any{})
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := eventlog.NewReader(bytes.NewReader(data), newCodecs(t))
	for err == nil {
		_, err = reader.Next()
	}
	if cores, functions := eventlog.Kept(reader); !errors.Is(err, io.EOF) || cores != 1 || functions != 1 {
		t.Errorf("%d cores and %d functions are kept, %v", cores, functions, err)
	}
}

// many has functions and times wherever they may be.
type many struct {
	Map   map[string]func() int
	Slice []func() int
	Array [2]func() int
	One   *counter
	Any   any
	Times map[time.Time]*time.Time
}

func (m many) handle() []any {
	said := sum{Is: m.Any.(counter).Start("any")}
	for _, f := range append(append(m.Slice, m.Array[:]...), m.Map["a"], m.Map["b"], m.Map["c"]) {
		said.Long = append(said.Long, int32(f()))
	}
	return []any{said, sum{Is: m.One.Start("one"), Length: len(m.Times)}}
}

// Functions answer in a replay as they did, wherever in an event they are.
func TestFunctionsAreFound(t *testing.T) {
	codec, err := eventlog.NewCodec(counter{}, many{}, sum{})
	if err != nil {
		t.Fatal(err)
	}
	codecs := eventlog.Codecs{"many": codec}
	path := filepath.Join(t.TempDir(), "log")
	log, err := eventlog.Create(path, eventlog.Options{Codecs: codecs, Limit: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	core, _ := eventlog.Begin[any](log, "many", nil)
	is := func(n int) func() int { return func() int { return n } }
	now := time.Now()
	given := core.Event(log.Now(), many{
		Map: map[string]func() int{"a": is(6), "b": is(7), "c": is(8)}, Slice: []func() int{is(2), is(3)}, Array: [2]func() int{is(4), is(5)},
		One: &counter{func(string) int { return 1 }}, Any: counter{func(string) int { return 9 }}, Times: map[time.Time]*time.Time{now: &now, {}: nil},
	}).(many)
	actions := given.handle()
	core.Actions(actions)
	if want := []int32{2, 3, 4, 5, 6, 7, 8}; actions[0].(sum).Is != 9 || !slices.Equal(actions[0].(sum).Long, want) || actions[1].(sum).Is != 1 {
		t.Errorf("the functions answered %v", actions)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := eventlog.NewReader(bytes.NewReader(data), codecs)
	if err != nil {
		t.Fatal(err)
	}
	var record *eventlog.Record
	for range 2 {
		if record, err = reader.Next(); err != nil {
			t.Fatal(err)
		}
	}
	read := record.Event.(many)
	if d, _ := record.Same(read.handle(), nil); d != nil {
		t.Errorf("%q and not %q", d.Got, d.Expected)
	}
	if !reflect.DeepEqual(given.Times, read.Times) {
		t.Errorf("the times are %v, and are read as %v", given.Times, read.Times)
	}
}

// A core can be read for as long as nothing of its own kind has changed.
func TestKindThatHasChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	codecs := newCodecs(t)
	changing := func(v any) (err error) {
		codecs["changing"], err = eventlog.NewCodec(v)
		return err
	}
	if err := changing(add{}); err != nil {
		t.Fatal(err)
	}
	log, err := eventlog.Create(path, eventlog.Options{Codecs: codecs, Build: "a build", Limit: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	counting, c := eventlog.Begin(log, "counter", counter{func(string) int { return 100 }})
	other, _ := eventlog.Begin[any](log, "changing", nil)
	other.Event(log.Now(), add{})
	other.Actions([]any{})
	counting.Actions(c.handle(counting.Event(log.Now(), add{What: 5})))
	if err := errors.Join(log.Close(), changing(sum{})); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	read := func(only string) (records int, err error) {
		reader, err := eventlog.NewReader(bytes.NewReader(data), codecs)
		if err != nil {
			return 0, err
		}
		reader.Only(only)
		for ; err == nil; records++ {
			_, err = reader.Next()
		}
		return records - 1, err
	}
	if n, err := read("counter"); n != 2 || !errors.Is(err, io.EOF) {
		t.Errorf("%d records of the other kind, %v", n, err)
	}
	for _, only := range []string{"", "changing"} {
		if _, err := read(only); err == nil || !strings.Contains(err.Error(), `a build, whose events of kind "changing" are not`) {
			t.Errorf("only %q: %v", only, err)
		}
	}
}

// Wherever a log is cut or damaged, what is before is replayed and the error says where.
func TestCutAndDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	record(t, path, 1<<20, someEvents(30)...)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		_, d, _, err := replay(t, whole[:n], 0)
		var cut *eventlog.CutError
		foreign := n < len("tandem events ") && strings.Contains(fmt.Sprint(err), "no event log") || n == 0 && strings.Contains(fmt.Sprint(err), "is empty")
		if d != nil || !foreign && (!errors.As(err, &cut) || cut.Offset > int64(n)) {
			t.Fatalf("cut at %d: %v", n, err)
		}
		damaged := bytes.Clone(whole)
		damaged[n] ^= 0x10
		events, d, _, err := replay(t, damaged, 0)
		if d != nil || err == nil {
			t.Fatalf("damaged at %d: %d events, difference %v, %v", n, events, d, err)
		}
		if text := err.Error(); strings.Contains(text, "\n") {
			t.Errorf("damaged at %d: %q is more than a line", n, text)
		}
	}
	if _, _, _, err := replay(t, append(whole, whole[len(whole)-20:]...), 0); err == nil {
		t.Error("what follows the end was not noticed")
	}
}

// What follows a part that cannot be read is not read, whether its content is damaged or its
// length.
func TestErrorStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	record(t, path, 1<<20, someEvents(500)...) // several parts
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := len(whole) / 2; at < len(whole); at += 61 {
		data := bytes.Clone(whole)
		data[at] ^= 0x10
		reader, err := eventlog.NewReader(bytes.NewReader(data), newCodecs(t))
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = reader.Next()
		}
		var damaged *eventlog.DamagedError
		var cut *eventlog.CutError
		if r, again := reader.Next(); r != nil || !errors.Is(again, err) || !errors.As(err, &damaged) && !errors.As(err, &cut) {
			t.Errorf("damaged at %d: %v, and then a record: %t, %v", at, err, r != nil, again)
		}
	}
}

func FuzzReader(f *testing.F) {
	path := filepath.Join(f.TempDir(), "log")
	record(f, path, 1<<20, someEvents(30)...)
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	codecs := newCodecs(f)
	f.Fuzz(func(_ *testing.T, data []byte) { readAll(codecs, data) })
}

// Checksums keep a fuzzer from the records: here they are always right.
func FuzzRecords(f *testing.F) {
	path := filepath.Join(f.TempDir(), "log")
	record(f, path, 1<<20, someEvents(5)...)
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	reader, err := eventlog.NewReader(bytes.NewReader(whole), newCodecs(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(eventlog.Records(reader))
	codecs := newCodecs(f)
	framed, err := eventlog.Framed()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(_ *testing.T, records []byte) { readAll(codecs, framed(records)) })
}

// readAll reads all of a log that there is, in every way.
func readAll(codecs eventlog.Codecs, data []byte) {
	for _, only := range []string{"", "counter", "another"} {
		reader, err := eventlog.NewReader(bytes.NewReader(data), codecs)
		if err != nil {
			return
		}
		if only != "" {
			reader.Only(only)
		}
		var c counter
		for {
			r, err := reader.Next()
			if err != nil {
				break
			}
			if config, is := r.Config.(counter); is {
				c = config
			}
			_, _, _ = r.Outcome()
			if c.Start != nil {
				c.Start("start")
			}
			if r.Event != nil {
				_, _ = r.Same([]any{sum{}}, nil)
			}
		}
	}
}

package replay_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/replay"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// fill gives v any value. Interfaces get an event that is told routing, and errors some error.
func fill(t *rapid.T, v reflect.Value, depth int) {
	switch v.Type() {
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "seconds"), rapid.Int64Range(0, 999999999).Draw(t, "ns"))))
		return
	case reflect.TypeFor[routing.Gaps]():
		var gaps routing.Gaps
		for range rapid.IntRange(0, 5).Draw(t, "gaps") {
			gaps.Add(time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "gap")))
		}
		v.Set(reflect.ValueOf(gaps))
		return
	}
	if v.Type().Implements(reflect.TypeFor[proto.Message]()) {
		if rapid.Bool().Draw(t, "set") {
			m := reflect.New(v.Type().Elem())
			fillMessage(t, m.Interface().(proto.Message).ProtoReflect(), depth)
			v.Set(m)
		}
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.Int64().Draw(t, "int"))
	case reflect.Int32, reflect.Int16, reflect.Int8:
		v.SetInt(int64(rapid.Int8().Draw(t, "int")))
	case reflect.Uint, reflect.Uint64:
		v.SetUint(rapid.Uint64().Draw(t, "uint"))
	case reflect.Uint32, reflect.Uint16, reflect.Uint8:
		v.SetUint(uint64(rapid.Uint8().Draw(t, "uint")))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(rapid.Float32().Draw(t, "float")))
	case reflect.String:
		v.SetString(rapid.String().Draw(t, "string"))
	case reflect.Pointer:
		if rapid.Bool().Draw(t, "set") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem(), depth+1)
		}
	case reflect.Slice:
		if n := rapid.IntRange(-1, 40>>depth).Draw(t, "length"); n >= 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				fill(t, v.Index(i), depth+1)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i), depth+1)
		}
	case reflect.Map:
		if n := rapid.IntRange(-1, 3).Draw(t, "length"); n >= 0 {
			v.Set(reflect.MakeMap(v.Type()))
			for range n {
				key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				fill(t, key, depth+1)
				fill(t, value, depth+1)
				v.SetMapIndex(key, value)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && recorded(f.Type) {
				fill(t, v.Field(i), depth+1)
			}
		}
	case reflect.Interface:
		of := errorsToWrite
		if v.Type() != reflect.TypeFor[error]() {
			of = []any{nil, routing.PromptDone{ID: "two"}, routing.Taken{ID: "one"}}
		}
		if x := rapid.SampledFrom(of).Draw(t, "value"); x != nil {
			v.Set(reflect.ValueOf(x))
		}
	}
}

// recorded says whether fields of a type are recorded: of interfaces only some are.
func recorded(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Interface:
		return t == reflect.TypeFor[error]() || t == reflect.TypeFor[routing.Event]()
	case reflect.Slice:
		return recorded(t.Elem())
	default:
		return true
	}
}

var errorsToWrite = []any{
	nil, errors.New("some text"), status.Error(codes.NotFound, "nothing"), rpc.Error(codes.ResourceExhausted, api.ReasonQueueFull, "full", time.Second),
	fmt.Errorf("around it: %w", status.Error(codes.Aborted, "it")),
}

// typedErrors keep their type, in the cores of a kind.
var typedErrors = map[string][]any{
	eventlog.KindRequest: {&routing.Refusal{Code: codes.Internal, Message: "why"}},
	eventlog.KindWorker: {
		&worker.NotFiniteError{NotFiniteError: &engine.NotFiniteError{Layer: 3}, Origin: "other"}, &engine.NotFiniteError{Layer: -1},
	},
}

// fillMessage sets some fields.
func fillMessage(t *rapid.T, m protoreflect.Message, depth int) {
	if depth > 3 {
		return
	}
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		switch {
		case !rapid.Bool().Draw(t, "set") || f.IsMap():
		case f.IsList():
			list := m.Mutable(f).List()
			for range rapid.IntRange(0, 2).Draw(t, "length") {
				if f.Message() != nil {
					fillMessage(t, list.AppendMutable().Message(), depth+1)
				} else {
					list.Append(fieldValue(t, f))
				}
			}
		case f.Message() != nil:
			fillMessage(t, m.Mutable(f).Message(), depth+1)
		default:
			m.Set(f, fieldValue(t, f))
		}
	}
}

func fieldValue(t *rapid.T, f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.StringN(0, 5, -1).Draw(t, "string"))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{1, 2})
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, "int"))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(t, "int"))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(t, "uint"))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(rapid.Uint64().Draw(t, "uint"))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(rapid.Float32().Draw(t, "float"))
	default:
		return protoreflect.ValueOfFloat64(rapid.Float64().Draw(t, "float"))
	}
}

// equal compares values as codecs have to keep them: errors by text and status, times by the
// moment, and nothing that is left out.
func equal(a, b reflect.Value) bool {
	switch {
	case a.Type() == reflect.TypeFor[time.Time]():
		return a.Interface().(time.Time).Equal(b.Interface().(time.Time))
	case a.Type().Implements(reflect.TypeFor[proto.Message]()):
		return a.IsNil() == b.IsNil() && proto.Equal(a.Interface().(proto.Message), b.Interface().(proto.Message))
	}
	switch a.Kind() {
	case reflect.Interface, reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		if err, is := a.Interface().(error); is && a.Kind() == reflect.Interface {
			switch a.Elem().Interface().(type) {
			case *routing.Refusal, *worker.NotFiniteError, *engine.NotFiniteError:
				return a.Elem().Type() == b.Elem().Type() && equal(a.Elem().Elem(), b.Elem().Elem())
			}
			other := b.Interface().(error)
			return err.Error() == other.Error() && proto.Equal(status.Convert(err).Proto(), status.Convert(other).Proto())
		}
		return a.Elem().Type() == b.Elem().Type() && equal(a.Elem(), b.Elem())
	case reflect.Slice:
		if a.IsNil() != b.IsNil() || a.Len() != b.Len() {
			return false
		}
		fallthrough
	case reflect.Array:
		for i := range a.Len() {
			if !equal(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		if a.IsNil() != b.IsNil() || a.Len() != b.Len() {
			return false
		}
		for i := a.MapRange(); i.Next(); {
			if other := b.MapIndex(i.Key()); !other.IsValid() || !equal(i.Value(), other) {
				return false
			}
		}
		return true
	case reflect.Struct:
		if a.Type() == reflect.TypeFor[routing.Gaps]() {
			return a.Interface() == b.Interface()
		}
		for i := range a.NumField() {
			switch a.Type().Field(i).Name {
			case "TokenBuffer", "Text", "Pool", "Pooling":
			case "Hashes":
				if a.Type() != reflect.TypeFor[scheduler.Request]() && !equal(a.Field(i), b.Field(i)) {
					return false
				}
			default:
				if !equal(a.Field(i), b.Field(i)) {
					return false
				}
			}
		}
		return true
	case reflect.Func:
		return true
	case reflect.Float32, reflect.Float64:
		return math.Float64bits(a.Float()) == math.Float64bits(b.Float())
	}
	return a.Interface() == b.Interface()
}

// Every registered type is read as it was written, as an event is.
func TestRoundTrip(t *testing.T) {
	codecs, err := replay.NewCodecs()
	if err != nil {
		t.Fatal(err)
	}
	for kind := range codecs {
		t.Run(kind, func(t *testing.T) { roundTrip(t, kind, codecs) })
	}
}

func roundTrip(t *testing.T, kind string, codecs eventlog.Codecs) {
	defer func(all []any) { errorsToWrite = all }(errorsToWrite)
	errorsToWrite = append(slices.Clone(errorsToWrite), typedErrors[kind]...)
	dir, files := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		files++
		path := filepath.Join(dir, fmt.Sprint(files))
		log, err := eventlog.Create(path, eventlog.Options{Codecs: codecs, Limit: 1 << 30, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		core, _ := eventlog.Begin[any](log, kind, nil)
		var written, given []any
		for _, registered := range codecs[kind].Types() {
			value := reflect.New(registered).Elem()
			fill(t, value, 0)
			written = append(written, value.Interface())
			given = append(given, core.Event(log.Now(), value.Interface()))
			core.Actions([]any{value.Interface()})
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
		if _, err := reader.Next(); err != nil {
			t.Fatal(err)
		}
		for i, value := range written {
			record, err := reader.Next()
			if err != nil {
				t.Fatal(err)
			}
			for what, got := range map[string]any{"read": record.Event, "given to the core": given[i]} {
				if a, b := reflect.ValueOf(value), reflect.ValueOf(got); a.Type() != b.Type() || !equal(a, b) {
					t.Errorf("%#v, %s: %#v", value, what, got)
				}
			}
			if d, _ := record.Same([]any{value}, nil); d != nil {
				t.Errorf("the same action differs: %q, %q", d.Expected, d.Got)
			}
			if _, _, err := record.Outcome(); err != nil {
				t.Error(err)
			}
		}
		if _, err := reader.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("after the last record: %v", err)
		}
	})
}

// form is a constraint, which no record has.
type form struct{ sampler.Constraint }

// A core that is recorded gets also what its record has not, and times as they are read.
func TestGivenToTheCore(t *testing.T) {
	codecs, err := replay.NewCodecs()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "events")
	log, err := eventlog.Create(path, eventlog.Options{Codecs: codecs, Limit: 1 << 30, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	core, _ := eventlog.Begin[any](log, eventlog.KindWorker, nil)
	request := scheduler.Request{
		Tokens: []int32{1, 2}, Hashes: []kvcache.Hash{3}, Constraint: &form{}, Pooling: engine.NewPooling(4), Deadline: time.Now().Add(time.Minute),
	}
	given := core.Event(log.Now(), worker.Generate{Request: request}).(worker.Generate).Request
	core.Actions([]any{})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	reader, err := eventlog.NewReader(file, codecs)
	if err != nil {
		t.Fatal(err)
	}
	var record *eventlog.Record
	for range 2 {
		if record, err = reader.Next(); err != nil {
			t.Fatal(err)
		}
	}
	read := record.Event.(worker.Generate).Request
	if read.Hashes != nil || read.Constraint != nil || read.Pooling.Size() != 4 {
		t.Errorf("read: %+v", read)
	}
	if given.Constraint != request.Constraint || given.Pooling != request.Pooling || !slices.Equal(given.Hashes, request.Hashes) {
		t.Errorf("given to the core: %+v, of %+v", given, request)
	}
	if !reflect.DeepEqual(given.Deadline, read.Deadline) {
		t.Errorf("the deadline is %v, and is read as %v", given.Deadline, read.Deadline)
	}
}

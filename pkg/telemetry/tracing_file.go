package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// defaultTraceFileBytes holds some 100,000 spans.
const defaultTraceFileBytes = 64 << 20

// minFileBytes holds more than one export.
const minFileBytes = 1 << 20

// traceFile writes spans as OTLP's JSON, one export a line, the form that
// OpenTelemetry's collector reads and writes as files
// (https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/).
type traceFile struct {
	name string
	most int64

	mu    sync.Mutex
	file  *os.File // nil after Shutdown
	bytes int64
}

// openTraceFile opens a file to append to.
func openTraceFile(name string, most int64) (*traceFile, error) {
	f := &traceFile{name: name, most: most}
	if err := f.open(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *traceFile) open() error {
	file, err := os.OpenFile(f.name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("trace file: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("trace file: %w", err), file.Close())
	}
	f.file, f.bytes = file, info.Size()
	return nil
}

// ExportSpans appends one line. A line that would make the file too long begins
// a new one.
func (f *traceFile) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	var line bytes.Buffer
	if err := json.NewEncoder(&line).Encode(otlpOf(spans)); err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return errors.New("the trace file is closed")
	}
	if f.bytes > 0 && f.bytes+int64(line.Len()) > f.most {
		if err := f.turn(); err != nil {
			return err
		}
	}
	if n, err := f.file.Write(line.Bytes()); err != nil {
		return fmt.Errorf("trace file: %w", errors.Join(err, f.cut(n)))
	}
	f.bytes += int64(line.Len())
	return nil
}

// cut takes back so many bytes of a line that was not written to its end: the next one would be a part
// of it. f.mu is held.
func (f *traceFile) cut(bytes int) error {
	info, err := f.file.Stat() // others may write there as well
	if err == nil && bytes > 0 {
		err = f.file.Truncate(info.Size() - int64(bytes))
	}
	return err
}

// turn keeps the full file as the old one. f.mu is held.
//
// A file that is not there any more was renamed already, by a turn that could not
// open the new one, or was removed by somebody else: then only that is left to do.
func (f *traceFile) turn() error {
	if err := os.Rename(f.name, f.name+".1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("trace file is full: %w", err)
	}
	full := f.file
	if err := f.open(); err != nil {
		return err
	}
	return full.Close()
}

// Shutdown closes the file.
func (f *traceFile) Shutdown(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	file := f.file
	f.file = nil
	return file.Close()
}

// The JSON of OTLP: lower camel case, ids in hexadecimal, 64-bit numbers as
// text, enumerations as numbers.
type (
	otlpTraces struct {
		ResourceSpans []*otlpResource `json:"resourceSpans"`
	}
	otlpResource struct {
		Resource   otlpAttributes `json:"resource"`
		ScopeSpans [1]otlpScope   `json:"scopeSpans"`
	}
	otlpAttributes struct {
		Attributes []otlpAttribute `json:"attributes"`
	}
	otlpScope struct {
		Scope struct {
			Name    string `json:"name"`
			Version string `json:"version,omitempty"`
		} `json:"scope"`
		Spans []otlpSpan `json:"spans"`
	}
	otlpSpan struct {
		TraceID           string          `json:"traceId"`
		SpanID            string          `json:"spanId"`
		TraceState        string          `json:"traceState,omitempty"`
		ParentSpanID      string          `json:"parentSpanId,omitempty"`
		Flags             uint32          `json:"flags,omitempty"`
		Name              string          `json:"name"`
		Kind              int             `json:"kind"`
		StartTimeUnixNano string          `json:"startTimeUnixNano"`
		EndTimeUnixNano   string          `json:"endTimeUnixNano"`
		Attributes        []otlpAttribute `json:"attributes,omitempty"`
		Events            []otlpEvent     `json:"events,omitempty"`
		Status            otlpStatus      `json:"status"`
	}
	otlpEvent struct {
		TimeUnixNano string          `json:"timeUnixNano"`
		Name         string          `json:"name"`
		Attributes   []otlpAttribute `json:"attributes,omitempty"`
	}
	otlpStatus struct {
		Code    int    `json:"code,omitempty"`
		Message string `json:"message,omitempty"`
	}
	otlpAttribute struct {
		Key   string    `json:"key"`
		Value otlpValue `json:"value"`
	}
	otlpValue struct {
		String *string      `json:"stringValue,omitempty"`
		Bool   *bool        `json:"boolValue,omitempty"`
		Int    *string      `json:"intValue,omitempty"`
		Double *float64     `json:"doubleValue,omitempty"`
		Array  *otlpStrings `json:"arrayValue,omitempty"`
	}
	otlpStrings struct {
		Values []otlpValue `json:"values"`
	}
)

// otlpOf groups spans by the part that made them.
func otlpOf(spans []sdktrace.ReadOnlySpan) otlpTraces {
	var out otlpTraces
	groups := make(map[attribute.Distinct]*otlpResource)
	for _, span := range spans {
		key := span.Resource().Equivalent()
		group := groups[key]
		if group == nil {
			group = &otlpResource{Resource: otlpAttributes{otlpAttributesOf(span.Resource().Attributes())}}
			group.ScopeSpans[0].Scope.Name = span.InstrumentationScope().Name
			group.ScopeSpans[0].Scope.Version = span.InstrumentationScope().Version
			groups[key] = group
			out.ResourceSpans = append(out.ResourceSpans, group)
		}
		group.ScopeSpans[0].Spans = append(group.ScopeSpans[0].Spans, otlpSpanOf(span))
	}
	return out
}

func otlpSpanOf(span sdktrace.ReadOnlySpan) otlpSpan {
	out := otlpSpan{
		TraceID:           span.SpanContext().TraceID().String(),
		SpanID:            span.SpanContext().SpanID().String(),
		TraceState:        span.SpanContext().TraceState().String(),
		Flags:             uint32(span.SpanContext().TraceFlags()),
		Name:              span.Name(),
		Kind:              int(trace.ValidateSpanKind(span.SpanKind())), // OTLP numbers them alike
		StartTimeUnixNano: unixNano(span.StartTime()),
		EndTimeUnixNano:   unixNano(span.EndTime()),
		Attributes:        otlpAttributesOf(span.Attributes()),
	}
	if span.Parent().HasSpanID() {
		out.ParentSpanID = span.Parent().SpanID().String()
	}
	for _, event := range span.Events() {
		out.Events = append(out.Events, otlpEvent{unixNano(event.Time), event.Name, otlpAttributesOf(event.Attributes)})
	}
	switch span.Status().Code { // OTLP has 1 for ok, 2 for error
	case codes.Ok:
		out.Status.Code = 1
	case codes.Error:
		out.Status = otlpStatus{Code: 2, Message: span.Status().Description}
	}
	return out
}

func unixNano(at time.Time) string { return strconv.FormatInt(at.UnixNano(), 10) }

func otlpAttributesOf(attributes []attribute.KeyValue) []otlpAttribute {
	out := make([]otlpAttribute, len(attributes))
	for i, a := range attributes {
		out[i] = otlpAttribute{Key: string(a.Key), Value: otlpValueOf(a.Value)}
	}
	return out
}

// otlpValueOf covers the types that spans of Tandem and resources have; another
// one becomes its text.
func otlpValueOf(v attribute.Value) otlpValue {
	switch v.Type() {
	case attribute.BOOL:
		value := v.AsBool()
		return otlpValue{Bool: &value}
	case attribute.INT64:
		value := strconv.FormatInt(v.AsInt64(), 10)
		return otlpValue{Int: &value}
	case attribute.FLOAT64:
		value := v.AsFloat64()
		return otlpValue{Double: &value}
	case attribute.STRINGSLICE:
		values := make([]otlpValue, 0, len(v.AsStringSlice()))
		for _, text := range v.AsStringSlice() {
			values = append(values, otlpValue{String: &text})
		}
		return otlpValue{Array: &otlpStrings{values}}
	}
	value := v.String()
	return otlpValue{String: &value}
}

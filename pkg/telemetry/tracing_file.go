package telemetry

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
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
	file  *os.File // nil after Stop
	bytes int64
}

var _ otlptrace.Client = (*traceFile)(nil)

// openTraceFile opens a file to append to.
func openTraceFile(name string, most int64) (*otlptrace.Exporter, error) {
	f := &traceFile{name: name, most: most}
	if err := f.open(); err != nil {
		return nil, err
	}
	return otlptrace.New(context.Background(), f)
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

// Start does nothing: the file is open.
func (f *traceFile) Start(context.Context) error { return nil }

// UploadTraces appends one line, and changes the ids in spans for it. A line that would make the
// file too long begins a new one.
func (f *traceFile) UploadTraces(_ context.Context, spans []*tracev1.ResourceSpans) error {
	idsInHex(spans)
	line, err := protojson.MarshalOptions{UseEnumNumbers: true}.Marshal(&tracev1.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	line = append(line, '\n')
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return errors.New("the trace file is closed")
	}
	if f.bytes > 0 && f.bytes+int64(len(line)) > f.most {
		if err := f.turn(); err != nil {
			return err
		}
	}
	if n, err := f.file.Write(line); err != nil {
		return fmt.Errorf("trace file: %w", errors.Join(err, f.cut(n)))
	}
	f.bytes += int64(len(line))
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

// Stop closes the file.
func (f *traceFile) Stop(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	file := f.file
	f.file = nil
	return file.Close()
}

// idsInHex replaces ids by bytes that are written as the hexadecimal digits of the ids. protojson
// writes bytes in base64, but OTLP's JSON has ids in hexadecimal
// (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding).
func idsInHex(spans []*tracev1.ResourceSpans) {
	for _, resource := range spans {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				span.TraceId, span.SpanId, span.ParentSpanId = inHex(span.GetTraceId()), inHex(span.GetSpanId()), inHex(span.GetParentSpanId())
				for _, link := range span.GetLinks() {
					link.TraceId, link.SpanId = inHex(link.GetTraceId()), inHex(link.GetSpanId())
				}
			}
		}
	}
}

func inHex(id []byte) []byte {
	bytes, _ := base64.StdEncoding.DecodeString(hex.EncodeToString(id)) // 16 or 32 digits are base64, too
	return bytes
}

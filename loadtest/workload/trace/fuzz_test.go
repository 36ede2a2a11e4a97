package trace_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tandem-serving/tandem/loadtest/workload/trace"
)

// check reads arbitrary bytes; entries must be sane and errors positioned within the
// input.
func check(t *testing.T, data []byte, format trace.Format) {
	r, err := trace.NewReader(bytes.NewReader(data), "t", format)
	var all []trace.Entry
	if err == nil {
		all, err = readAll(r)
	}
	if err != nil {
		var syntax *trace.SyntaxError
		if !errors.As(err, &syntax) {
			t.Fatalf("%T %v, want a syntax error", err, err)
		}
		if syntax.Line < 1 || syntax.Column < 1 || syntax.Line > bytes.Count(data, []byte("\n"))+1 || syntax.Column > len(data)+2 {
			t.Fatalf("the error %v is outside of %d bytes", err, len(data))
		}
	}
	for i, entry := range all {
		if entry.PromptTokens < 0 || entry.OutputTokens < 0 || entry.At < 0 || i > 0 && entry.At < all[i-1].At {
			t.Fatalf("entry %d: %+v", i, entry)
		}
		if entry.Blocks != nil && len(entry.Blocks) > (entry.PromptTokens+trace.BlockTokens-1)/trace.BlockTokens {
			t.Fatalf("entry %d: more blocks than tokens: %+v", i, entry)
		}
		if format == trace.ShareGPT && len(entry.Turns) == 0 {
			t.Fatalf("entry %d has no turns", i)
		}
	}
}

func FuzzAzure(f *testing.F) {
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\r\n2024-05-10 00:00:00.009930+00:00,1,2"))
	f.Add([]byte("generatedtokens,contexttokens,timestamp,x\n1,2,2024-05-10T00:00:00Z,\n1,2,2023-05-10T00:00:00Z,"))
	f.Fuzz(func(t *testing.T, data []byte) { check(t, data, trace.Azure) })
}

func FuzzMooncake(f *testing.F) {
	f.Add([]byte(`{"timestamp": 1000, "input_length": 513, "output_length": 3, "hash_ids": [7, 8]}` + "\n" + `{"timestamp": 1e3, "input_length": 5, "output_length": 3, "hash_ids": []}`))
	f.Add([]byte(`{"timestamp": 9e99}` + "\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) { check(t, data, trace.Mooncake) })
}

func FuzzShareGPT(f *testing.F) {
	f.Add([]byte(`[{"id": "a", "conversations": [{"from": "human", "value": "Hi \"\u00fc {["}, {"from": "gpt", "value": "Hello"}]}, {"conversations": null}]`))
	f.Add([]byte("{\"conversations\": []}\n{\"conversations\": [{\"from\": \"x\\\"}\", \"value\": \"\"}]}"))
	f.Fuzz(func(t *testing.T, data []byte) { check(t, data, trace.ShareGPT) })
}

func FuzzAuto(f *testing.F) {
	f.Add([]byte("\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n"))
	f.Add([]byte(`{"input_length": 5}`))
	f.Add([]byte(`[{}`))
	f.Fuzz(func(t *testing.T, data []byte) { check(t, data, trace.Auto) })
}

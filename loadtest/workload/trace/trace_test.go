package trace_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/loadtest/workload/trace"
)

func readAll(r trace.Reader) ([]trace.Entry, error) {
	var all []trace.Entry
	for {
		entry, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, entry)
	}
}

func TestRead(t *testing.T) {
	const header = "TIMESTAMP,ContextTokens,GeneratedTokens"
	talk := []trace.Entry{
		{Turns: []trace.Turn{{"Hi \"you\" {[", "Hello"}, {"And\n\nthen?", "Bye"}}},
		{System: "Be brief.", Turns: []trace.Turn{{"ü", ""}}},
	}
	for _, c := range []struct {
		name, text string
		format     trace.Format
		want       []trace.Entry
	}{
		{"azure", header + "\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109", trace.Azure,
			[]trace.Entry{{PromptTokens: 374, OutputTokens: 44}, {At: 4314579 * time.Microsecond, PromptTokens: 396, OutputTokens: 109}}},
		{"azure of 2024, columns elsewhere, byte order mark", "\ufeffid,GeneratedTokens, contexttokens,TIMESTAMP\n\n7,1,2,2024-05-10 00:00:00.009930+00:00\n8,3,4,2024-05-10 00:00:01+00:00\n", trace.Azure,
			[]trace.Entry{{PromptTokens: 2, OutputTokens: 1}, {At: 990070 * time.Microsecond, PromptTokens: 4, OutputTokens: 3}}},
		{"azure, no requests", header, trace.Azure, nil},
		{"mooncake", `{"timestamp": 1000, "input_length": 513, "output_length": 3, "hash_ids": [7, 8]}` + "\n\n" + `{"timestamp": 2500.5, "input_length": 1100, "output_length": 0, "hash_ids": [7, 9], "more": {}}`, trace.Mooncake,
			[]trace.Entry{{PromptTokens: 513, OutputTokens: 3, Blocks: []uint64{7, 8}}, {At: 1500500 * time.Microsecond, PromptTokens: 1100, Blocks: []uint64{7, 9}}}},
		{"mooncake without ids", `{"timestamp": 0, "input_length": 5, "output_length": 3}`, trace.Mooncake, []trace.Entry{{PromptTokens: 5, OutputTokens: 3}}},
		{"sharegpt", ` [ {"id": "a", "conversations": [{"from": "gpt", "value": "first"}, {"from": "human", "value": "Hi \"you\" {["}, {"from": "gpt", "value": "Hello"},
			{"from": "User", "value": "And"}, {"from": "human", "value": "then?"}, {"from": "chatgpt", "value": "Bye"}, {"from": "human", "value": "lost"}]},
			{"conversations": []},
			{"conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "\u00fc"}, {"from": "gpt", "value": ""}]} ] `, trace.ShareGPT, talk},
		{"sharegpt as lines", `{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
{"conversations": [{"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}`, trace.ShareGPT,
			[]trace.Entry{{Turns: []trace.Turn{{"a", "b"}}}, {Turns: []trace.Turn{{"c", "d"}}}}},
		{"sharegpt, empty", "[]", trace.ShareGPT, nil},
	} {
		for _, format := range []trace.Format{trace.Auto, c.format} {
			t.Run(c.name+"/"+string(format), func(t *testing.T) {
				r, err := trace.NewReader(strings.NewReader(c.text), "t", format)
				if err != nil {
					t.Fatal(err)
				}
				got, err := readAll(r)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(c.want, got); diff != "" || r.Format() != c.format {
					t.Errorf("format %s, -want +got:\n%s", r.Format(), diff)
				}
				if _, err := r.Next(); !errors.Is(err, io.EOF) {
					t.Errorf("after the end: %v, want EOF", err)
				}
			})
		}
	}
}

func TestMalformed(t *testing.T) {
	const header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	long := strings.Repeat("x", 2<<20)
	for _, c := range []struct {
		name   string
		format trace.Format
		text   string
		want   string
	}{
		{"auto, empty", trace.Auto, "", "t:1:1: the file is empty"},
		{"auto, something else", trace.Auto, "hello\n", "t:1:1: cannot tell the format"},
		{"azure, empty", trace.Azure, "", "t:1:1: the file is empty: expected the header"},
		{"azure, header", trace.Azure, "TIMESTAMP,ContextTokens\n", "t:1:1: the header has no column GeneratedTokens"},
		{"azure, time", trace.Azure, header + "yesterday,1,2\n", `t:2:1: "yesterday" is not a time: expected one such as`},
		{"azure, number", trace.Azure, header + "2023-11-16 18:15:46,1,2\n\n2023-11-16 18:15:46, 1,2x\n", `t:4:24: "2x" is not a number of tokens`},
		{"azure, negative", trace.Azure, header + "2023-11-16 18:15:46,-1,2\n", `t:2:21: "-1" is not a number of tokens`},
		{"azure, few fields", trace.Azure, header + "2023-11-16 18:15:46,1", `t:2:22: the line has 2 fields: expected 3`},
		{"azure, many fields", trace.Azure, header + "2023-11-16 18:15:46,1,2,3", `t:2:24: the line has more than 3 fields`},
		{"azure, order", trace.Azure, header + "2023-11-16 18:15:46,1,2\n2023-11-16 18:15:44.5,1,2\n", `t:3:1: this request came 1.5s before the one above: sort the file by time, the oldest first`},
		{"azure, long line", trace.Azure, header + long, "t:2:1048577: the line is longer than 1 MiB"},
		{"mooncake, syntax", trace.Mooncake, `{"timestamp": 1, "input_length": x}`, `t:1:34: invalid character 'x'`},
		{"mooncake, cut off", trace.Mooncake, `{"timestamp": 1`, `t:1:15: unexpected end`},
		{"mooncake, kind", trace.Mooncake, `{"timestamp": 1, "input_length": "5"}`, `t:1:36: input_length: expected a whole number, not string`},
		{"mooncake, negative id", trace.Mooncake, `{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [-3]}`, `hash_ids: expected a whole number from 0, not number -3`},
		{"mooncake, array", trace.Mooncake, `[1]`, `t:1:1: expected an object, not array`},
		{"mooncake, missing", trace.Mooncake, "\n" + `{"timestamp": 1, "output_length": 1}`, `t:2:1: input_length is missing`},
		{"mooncake, negative", trace.Mooncake, `{"timestamp": 1, "input_length": -5, "output_length": 1}`, `t:1:18: input_length is -5`},
		{"mooncake, ids", trace.Mooncake, `{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1,2,3]}`, `t:1:59: input_length 600 has 3 hash_ids: expected 2`},
		{"mooncake, order", trace.Mooncake, `{"timestamp": 10, "input_length": 6, "output_length": 1}` + "\n" + `{"timestamp": 9, "input_length": 6, "output_length": 1}`, `t:2:2: this request came 1ms before`},
		{"mooncake, long line", trace.Mooncake, `{"x": "` + long + `"}`, "t:1:1048577: the line is longer"},
		{"sharegpt, empty", trace.ShareGPT, " ", "t:1:2: the file is empty"},
		{"sharegpt, no array", trace.ShareGPT, " 5", "t:1:2: '5' where an array of objects was expected"},
		{"sharegpt, comma", trace.ShareGPT, "[{\"conversations\": []}\n{}]", "t:2:1: '{' where ',' or ']' was expected"},
		{"sharegpt, element", trace.ShareGPT, `[5]`, "t:1:2: '5' where an object was expected"},
		{"sharegpt, last comma", trace.ShareGPT, `[{"conversations": []},]`, "t:1:24: ']' where an object was expected"},
		{"sharegpt, after", trace.ShareGPT, "[]\n\n5", "t:3:1: '5' after the array"},
		{"sharegpt, array cut off", trace.ShareGPT, "[", "t:1:2: the file ends inside the array"},
		{"sharegpt, object cut off", trace.ShareGPT, "[\n {\"conversations\": [", "t:2:2: the object has no end"},
		{"sharegpt, syntax", trace.ShareGPT, "[\n{\n\"conversations\": [x]}]", "t:3:19: invalid character 'x'"},
		{"sharegpt, kind", trace.ShareGPT, `[{"conversations": 5}]`, `t:1:20: conversations: expected an array, not number`},
		{"sharegpt, missing", trace.ShareGPT, `[ {}]`, `t:1:3: conversations is missing`},
		{"sharegpt, no value", trace.ShareGPT, `[{"conversations": [{"from": "human"}]}]`, `t:1:2: conversations[0] lacks from or value`},
		{"sharegpt, speaker", trace.ShareGPT, `[{"conversations": [{"from": "dog", "value": "w"}]}]`, `t:1:2: conversations[0] is from "dog": expected human, gpt or system`},
		{"sharegpt, long object", trace.ShareGPT, `[{"x": "` + strings.Repeat(long, 9) + `"}]`, "t:1:2: the object is longer than 16 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := trace.NewReader(strings.NewReader(c.text), "t", c.format)
			if err == nil {
				_, err = readAll(r)
			}
			var syntax *trace.SyntaxError
			if !errors.As(err, &syntax) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %.300v\nwant a syntax error with %q", err, c.want)
			}
		})
	}
	if _, err := trace.NewReader(strings.NewReader("x"), "t", "parquet"); err == nil || !strings.Contains(err.Error(), "choose auto, azure") {
		t.Errorf("unknown format: %v", err)
	}
	if _, err := trace.Open(filepath.Join(t.TempDir(), "none"), trace.Auto); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := trace.Open(t.TempDir(), trace.Auto); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("folder: %v", err)
	}
}

// endless repeats a line.
type endless struct {
	line string
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.line[e.at:])
	e.at = (e.at + n) % len(e.line)
	return n, nil
}

// A trace is streamed: an endless one can be read.
func TestStreams(t *testing.T) {
	for format, text := range map[trace.Format]string{
		trace.Mooncake: `{"timestamp": 5, "input_length": 6, "output_length": 1}` + "\n",
		trace.ShareGPT: `{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}` + "\n",
	} {
		r, err := trace.NewReader(&endless{line: text}, "t", format)
		if err != nil {
			t.Fatal(err)
		}
		for range 10_000 {
			if _, err := r.Next(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// fails returns an error after some text.
type fails struct{ text io.Reader }

var errDisk = errors.New("disk on fire")

func (f fails) Read(p []byte) (int, error) {
	n, err := f.text.Read(p)
	if errors.Is(err, io.EOF) {
		err = errDisk
	}
	return n, err
}

// An I/O error is reported as such, not as the end of the trace or a syntax error.
func TestReadErrors(t *testing.T) {
	for format, text := range map[trace.Format]string{
		trace.Azure:    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15",
		trace.Mooncake: `{"timestamp": 5,`,
		trace.ShareGPT: `[{"conversations": [`,
		trace.Auto:     "[",
	} {
		t.Run(string(format), func(t *testing.T) {
			r, err := trace.NewReader(fails{strings.NewReader(text)}, "t", format)
			if err == nil {
				_, err = readAll(r)
			}
			if !errors.Is(err, errDisk) {
				t.Errorf("error %v, want the disk's", err)
			}
		})
	}
}

// realTrace is the path of a public trace; the test is skipped where there is none.
func realTrace(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("TANDEM_TRACES")
	if dir == "" {
		dir = "../../../../shared/data"
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no %s: set TANDEM_TRACES to the folder that has it", name)
	}
	return path
}

func TestRealTraces(t *testing.T) {
	for _, c := range []struct {
		name, format          string
		count, prompt, output int
		hours, sharedPercent  float64
	}{
		{"AzureLLMInferenceTrace_conv.csv", "azure", 19366, 1155, 211, 0.973, 0},
		{"conversation_trace.jsonl", "mooncake", 12031, 12035, 343, 0.9825, 36.6},
	} {
		t.Run(c.format, func(t *testing.T) {
			file, err := trace.Open(realTrace(t, c.name), trace.Auto)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			all, err := readAll(file)
			if err != nil {
				t.Fatal(err)
			}
			var prompt, output, blocks, shared float64
			seen := map[uint64]bool{}
			for _, entry := range all {
				prompt += float64(entry.PromptTokens)
				output += float64(entry.OutputTokens)
				known := true
				for _, id := range entry.Blocks {
					blocks++
					if known = known && seen[id]; known {
						shared++
					}
				}
				for _, id := range entry.Blocks {
					seen[id] = true
				}
			}
			n := float64(len(all))
			got := fmt.Sprintf("%s: %d requests, %.0f in, %.0f out, %.1f%% shared", file.Format(), len(all), prompt/n, output/n, 100*shared/max(blocks, 1))
			want := fmt.Sprintf("%s: %d requests, %d in, %d out, %.1f%% shared", c.format, c.count, c.prompt, c.output, c.sharedPercent)
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if hours := all[len(all)-1].At.Hours(); hours < c.hours-0.001 || hours > c.hours+0.001 {
				t.Errorf("the trace lasts %f hours, want %f", hours, c.hours)
			}
		})
	}
}

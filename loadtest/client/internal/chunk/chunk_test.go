package chunk_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tandem-serving/tandem/loadtest/client/internal/chunk"
)

func TestParse(t *testing.T) {
	cases := []struct {
		name, data string
		want       chunk.Chunk
	}{
		{
			"completion", `{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":null}]}`,
			chunk.Chunk{ID: "cmpl-1", Choices: true, Text: " a"},
		},
		{
			"role", `{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}`,
			chunk.Chunk{ID: "c", Choices: true},
		},
		{
			"null content", `{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}`,
			chunk.Chunk{ID: "c", Choices: true},
		},
		{
			"chat", `{"choices":[{"index":0,"delta":{"content":"\u00e9\n"}}]}`,
			chunk.Chunk{Choices: true, Text: "é\n"},
		},
		{
			"reasoning of DeepSeek", `{"choices":[{"delta":{"reasoning_content":"hm","content":null}}]}`,
			chunk.Chunk{Choices: true, Reasoning: "hm"},
		},
		{
			"reasoning by both names", `{"choices":[{"delta":{"reasoning_content":"hm","reasoning":"hm"}}]}`,
			chunk.Chunk{Choices: true, Reasoning: "hm"},
		},
		{
			"tool call", `{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}`,
			chunk.Chunk{Choices: true, Other: true},
		},
		{
			"finish", `{"choices":[{"delta":{},"finish_reason":"length","stop_reason":null}]}`,
			chunk.Chunk{Choices: true, FinishReason: "length"},
		},
		{
			"empty finish reason", `{"choices":[{"text":"a","finish_reason":""}]}`,
			chunk.Chunk{Choices: true, Text: "a"},
		},
		{
			"token ids", `{"choices":[{"text":"ab","token_ids":[5,6]}]}`,
			chunk.Chunk{Choices: true, Text: "ab", TokenIDs: []uint32{5, 6}},
		},
		{
			"usage", `{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}`,
			chunk.Chunk{Usage: &chunk.Usage{Prompt: 7, Completion: 3, Cached: 4}},
		},
		{
			"usage with nulls", `{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":null,"prompt_tokens_details":null}}`,
			chunk.Chunk{Usage: &chunk.Usage{Prompt: 7, Completion: -1, Cached: -1}},
		},
		{
			"usage that cannot be", `{"choices":[],"usage":{"prompt_tokens":-7,"completion_tokens":99999999999}}`,
			chunk.Chunk{Usage: &chunk.Usage{Prompt: -1, Completion: -1, Cached: -1}},
		},
		{
			"two choices", `{"choices":[{"index":0,"text":"a"},{"index":1,"text":"b"}]}`,
			chunk.Chunk{Choices: true, Text: "ab"},
		},
		{
			"error of vLLM", `{"error":{"message":"boom","type":"InternalServerError","param":null,"code":500}}`,
			chunk.Chunk{Error: &chunk.Error{Message: "boom", Type: "InternalServerError", Code: "500"}},
		},
		{
			"error of OpenAI", `{"error":{"message":"slow down","type":"requests","param":null,"code":"rate_limit_exceeded"}}`,
			chunk.Chunk{Error: &chunk.Error{Message: "slow down", Type: "requests", Code: "rate_limit_exceeded"}},
		},
		{"error as a string", `{"error":"boom"}`, chunk.Chunk{Error: &chunk.Error{Message: "boom"}}},
		{"error as another object", `{"error":{"reason":"boom"}}`, chunk.Chunk{Error: &chunk.Error{Message: `{"reason":"boom"}`}}},
		{"error as an object", `{"object":"error","message":"boom","code":40303}`, chunk.Chunk{Error: &chunk.Error{Message: "boom", Code: "40303"}}},
		{"no error", `{"error":null,"choices":[{"text":"a"}]}`, chunk.Chunk{Choices: true, Text: "a"}},
	}
	for _, c := range cases {
		got, err := chunk.Parse([]byte(c.data))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, data := range []string{
		``, `{`, `[]`, `"a"`, `{}`, `{"message":"hello"}`, `{"choices":[{"text":1}]}`, `{"choices":{}}`, `{"choices":[{"text":"a"}]} x`,
		`{"choices":[{"text":"a","token_ids":[-1]}]}`, "{\"choices\":[{\"text\":\"a\nb\"}]}",
	} {
		if c, err := chunk.Parse([]byte(data)); err == nil || !strings.Contains(err.Error(), "OpenAI's form") {
			t.Errorf("%s: %+v, %v", data, c, err)
		}
	}
}

func TestParseError(t *testing.T) {
	cases := []struct{ data, want string }{
		{`{"error":{"message":"a"}}`, "a"},
		{`{"detail":"Not Found"}`, "Not Found"},
		{`{"detail":[{"msg":"b"}]}`, `[{"msg":"b"}]`},
		{`{"object":"error","message":"c"}`, "c"},
		{`<html>`, ""},
		{`{"message":"hello"}`, ""},
	}
	for _, c := range cases {
		got := ""
		if e := chunk.ParseError([]byte(c.data)); e != nil {
			got = e.Message
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.data, got, c.want)
		}
	}
}

// Streams that a Parser must parse like Parse.
var streams = [][2]string{
	{`{"id":"1","choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":null}]}`, `{"id":"1","choices":[{"index":0,"text":" b","logprobs":null,"finish_reason":null}]}`},
	{`{"id":"1","choices":[{"delta":{"content":"a"}}]}`, `{"id":"1","choices":[{"delta":{"content":"\n\"\u00e9\ud83d\ude00"}}]}`},
	{`{"choices": [{"delta": {"content": "a"}}]}`, `{"choices": [{"delta": {"content": ""}}]}`},
	{`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{"content":"a"}}],"usage":null}`},
	{`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{"content":"a","reasoning":"b"}}]}`},
	{`{"choices":[{"delta":{"content":"a"}}]}`, `{"choices":[{"delta":{"content":"a"},"finish_reason":"stop","x":{"y":"b"}}]}`},
	{`{"choices":[{"delta":{"content":"a","content":"b"}}]}`, `{"choices":[{"delta":{"content":"a","content":"c"}}]}`},
	{`{"choices":[{"delta":{"content":"a"},"x":{"content":"a"}}]}`, `{"choices":[{"delta":{"content":"a"},"x":{"content":"b"}}]}`},
	{`{"choices":[{"delta":{"content":"\"content\":\"a"}}]}`, `{"choices":[{"delta":{"content":"\"content\":\"b"}}]}`},
	{`{"choices":[{"delta":{"reasoning_content":"a"}}]}`, `{"choices":[{"delta":{"reasoning_content":"b"}}]}`},
	{`{"choices":[{"delta":{"reasoning":"a","reasoning_content":"a"}}]}`, `{"choices":[{"delta":{"reasoning":"b","reasoning_content":"b"}}]}`},
	{`{"choices":[{"text":"a","token_ids":[1]}]}`, `{"choices":[{"text":"b","token_ids":[2]}]}`},
	{`{"choices":[{"text":"a"},{"text":"b"}]}`, `{"choices":[{"text":"a"},{"text":"c"}]}`},
	{`{"choices":[{"text":"a"}]}`, "{\"choices\":[{\"text\":\"\xff\"}]}"},
	{`{"choices":[{"text":"a"}]}`, "{\"choices\":[{\"text\":\"\n\"}]}"},
	{`{"choices":[{"text":"a"}]}`, `{"choices":[{"text":"\x"}]}`},
	{`{"choices":[{"text":"a"}]}`, `{"choices":[{"text":"\"}]}`},
	{`{"choices":[{"text":"a"}]}`, `{"choices":[{"text":"\u12"}]}`},
	{`{"choices":[{"text":"a"}]}`, `{"choices":[{"text":"a"}],"error":"b"}]}`},
	{`{"choices":[{"text":"a"}]}`, `{"error":{"message":"no"}}`},
	{`{"choices":[{"text":"a"}]}`, `{"choices":[{"text":"`},
	{`{"text":"a","choices":[{"text":"a"}]}`, `{"text":"a","choices":[{"text":"b"}]}`},
}

// check parses first, then second twice, and compares with Parse.
func check(t *testing.T, first, second []byte) {
	t.Helper()
	p := new(chunk.Parser)
	for i, data := range [][]byte{first, second, first, second, second} {
		want, wantErr := chunk.Parse(data)
		for _, text := range []bool{true, false} {
			got, err := p.Parse(data, text)
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("chunk %d: %v, want %v", i, err, wantErr)
			}
			if !text {
				if (got.Text == "") != (want.Text == "") || (got.Reasoning == "") != (want.Reasoning == "") {
					t.Fatalf("chunk %d: %+v, want %+v", i, got, want)
				}
				got.Text, got.Reasoning = want.Text, want.Reasoning
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("chunk %d, text %t (-want +got):\n%s", i, text, diff)
			}
		}
	}
}

func TestParserIsParse(t *testing.T) {
	for i, s := range streams {
		t.Run(fmt.Sprint(i), func(t *testing.T) { check(t, []byte(s[0]), []byte(s[1])) })
	}
}

func FuzzParser(f *testing.F) {
	for _, s := range streams {
		f.Add([]byte(s[0]), []byte(s[1]))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		check(t, first, second)
		// Combine the second's text with the first's surroundings, which a fuzzer would
		// seldom find.
		if text, err := json.Marshal(string(second)); err == nil {
			for _, frame := range []string{`{"choices":[{"delta":{"content":%s}}]}`, `{"choices":[{"text":%s,"index":0}],"id":"1"}`} {
				check(t, []byte(fmt.Sprintf(frame, `"a"`)), []byte(fmt.Sprintf(frame, text)))
				check(t, []byte(fmt.Sprintf(frame, text)), []byte(fmt.Sprintf(frame, `"`+string(second)+`"`)))
			}
		}
	})
}

func BenchmarkParser(b *testing.B) {
	data := func(i int) []byte {
		return fmt.Appendf(nil, `{"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1795193154,"model":"meta-llama/Llama-3.1-8B-Instruct","choices":[{"index":0,"delta":{"content":" token%d"},"logprobs":null,"finish_reason":null}]}`, i)
	}
	chunks := [][]byte{data(1), data(2), data(3)}
	b.Run("parser", func(b *testing.B) {
		p := new(chunk.Parser)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if c, err := p.Parse(chunks[i%3], false); err != nil || c.Text == "" {
				b.Fatal(err)
			}
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if c, err := chunk.Parse(chunks[i%3]); err != nil || c.Text == "" {
				b.Fatal(err)
			}
		}
	})
}

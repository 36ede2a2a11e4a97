package commands_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A directory with nothing but a tokenizer.json is enough.
func TestBenchTokenizer(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(bundled, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("Once upon a time, there was a little girl. ", 100)
	got := run(t.Context(), text, nil, "bench", "tokenizer", "--model", dir, "--text", "-", "--duration", "50ms", "--json")
	if got.status != 0 {
		t.Fatalf("%+v", got)
	}
	result := last(t, got.stdout)
	keys := []string{
		"clock", "decode_mbytes_per_s_core", "decode_tokens_per_s_core", "encode_mbytes_per_s_core", "encode_of_scan",
		"encode_tokens_per_s_core", "scan_mbytes_per_s_core", "text_bytes", "text_tokens", "threads",
	}
	var said []string
	for key, value := range result {
		said = append(said, key)
		if n, is := value.(float64); is && n <= 0 {
			t.Errorf("%s is %v", key, value)
		}
	}
	slices.Sort(said)
	if !slices.Equal(said, keys) || result["text_bytes"] != float64(len(text)) {
		t.Errorf("%s\nwant the keys %v", got.stdout, keys)
	}

	for _, c := range []struct {
		name, stdin string
		args        []string
		status      int
		says        string
	}{
		{"for people", text, []string{"--model", dir, "--text", "-", "--duration", "50ms"}, 0, "M tokens/s"},
		{"no tokenizer", text, []string{"--model", t.TempDir(), "--text", "-"}, 1, "there is no tokenizer: fetch tokenizer.json"},
		{"no text", "", []string{"--model", dir, "--text", "-"}, 1, "the text is empty"},
		{"no time", text, []string{"--duration", "0s"}, 2, "must be above 0"},
	} {
		got := run(t.Context(), c.stdin, nil, append([]string{"bench", "tokenizer"}, c.args...)...)
		if got.status != c.status || !strings.Contains(got.stdout+got.stderr, c.says) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

package openai_test

import (
	"testing"

	"github.com/tandem-serving/tandem/services/router/openai"
)

func FuzzAppendJSON(f *testing.F) {
	for _, text := range []string{
		"", " once", "<&>", "\"\\/", "\b\f\n\r\t\x00\x01\x1f\x7f", "é世界🦙", "\u2028\u2029\u2030", "a\xffb\xe2\x80", "\ufffd",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, err := openai.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := openai.AppendJSON([]byte("x"), text); string(got) != "x"+string(want) {
			t.Errorf("%q is %s, want x%s", text, got, want)
		}
	})
}

func TestAppendJSONAllocatesNothing(t *testing.T) {
	buffer := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() { buffer = openai.AppendJSON(buffer[:0], " once \"upon\"\n") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

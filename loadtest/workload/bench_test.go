package workload_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/loadtest/workload"
)

func BenchmarkNext(b *testing.B) {
	for _, c := range []struct {
		name, args string
		params     workload.Params
	}{
		{"ids/16", "--prompt-tokens=16", server},
		{"ids/512", "--prompt-tokens=512", server},
		{"ids/3900", "--prompt-tokens=3900", server},
		{"ids/512/prefix", "--prompt-tokens=512 --shared-prefix-tokens=512 --shared-prefixes=16", server},
		{"ids/512/gamma", "--prompt-tokens=512 --arrival=gamma --burstiness=0.5", server},
		{"ids/512/turns", "--prompt-tokens=512 --turns=uniform:2-5", server},
		{"text/512", "--prompt-tokens=512 --prompt-kind=text", server},
	} {
		b.Run(c.name, func(b *testing.B) {
			source := sourceOf(b, c.params, append(strings.Fields(c.args), "--seed=1")...)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := source.Next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkReplay(b *testing.B) {
	for _, c := range []struct{ name, file, scale string }{
		{"azure", "AzureLLMInferenceTrace_conv.csv", "1"},
		{"mooncake", "conversation_trace.jsonl", "1"},
		{"mooncake/scaled", "conversation_trace.jsonl", "0.05"},
	} {
		b.Run(c.name, func(b *testing.B) {
			params := server
			params.ContextTokens = 1 << 18
			spec := specOf(b, "--trace="+realTrace(b, c.file), "--trace-scale-lengths="+c.scale)
			var source workload.Source
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%10_000 == 0 {
					if source != nil {
						closeSource(b, source)
					}
					var err error
					if source, err = spec.New(params); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := source.Next(); err != nil {
					b.Fatal(err)
				}
			}
			closeSource(b, source)
		})
	}
}

package tokenizer_test

import (
	"os"
	"strings"
	"testing"
)

func benchmarkEncode(b *testing.B, text string) {
	tok := openFable(b)
	tokens := 0
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		tokens += len(tok.Encode(text, true))
	}
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
}

func BenchmarkEncode(b *testing.B) {
	tale, err := os.ReadFile(fableDir + "/heldout.txt")
	if err != nil {
		b.Fatal(err)
	}
	b.Run("prose", func(b *testing.B) { benchmarkEncode(b, string(tale)) })
	b.Run("sentence", func(b *testing.B) { benchmarkEncode(b, "Once upon a time there was a king.") })
	b.Run("scripts", func(b *testing.B) {
		benchmarkEncode(b, strings.Repeat("日本語のテキスト русский العربية हिन्दी ภาษาไทย 👩\u200d👧 ", 50))
	})
	b.Run("one piece", func(b *testing.B) { benchmarkEncode(b, strings.Repeat("once", 25_000)) })
}

func BenchmarkDecode(b *testing.B) {
	tok := openFable(b)
	tale, err := os.ReadFile(fableDir + "/heldout.txt")
	if err != nil {
		b.Fatal(err)
	}
	ids := tok.Encode(string(tale), true)
	perSecond := func(b *testing.B) {
		b.ReportMetric(float64(b.N)*float64(len(ids))/b.Elapsed().Seconds(), "tokens/s")
	}
	b.Run("whole", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			tok.Decode(ids, true)
		}
		perSecond(b)
	})
	b.Run("stream", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s := tok.NewStream(true)
			for _, id := range ids {
				s.Next(id)
			}
			s.Flush()
		}
		perSecond(b)
	})
}

func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		openFable(b)
	}
}

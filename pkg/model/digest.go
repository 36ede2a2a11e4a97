package model

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/pkg/parallel"
)

// digestChunkBytes is the size of a leaf of the tree that is hashed. It is part
// of the digest's definition.
const digestChunkBytes = 4 << 20

// digest is the identity of a model, independent of names, of shards and of the
// order of tensors in them: the first 16 bytes, in hexadecimal, of the SHA-256
// of a text that states the configuration and then, by name, each tensor's name,
// type, shape and the SHA-256 over the SHA-256s of its chunks of 4 MiB.
//
// It reads all weights every time, and refuses those that are not finite. A cache keyed by size and time of files would
// be faster, and wrong after a restored backup or an edit in place; the pages it
// reads are those that packing the weights needs next.
func digest(ctx context.Context, spec Spec, tensors []Tensor, opts Options) (string, error) {
	tensors = slices.SortedFunc(slices.Values(tensors), func(a, b Tensor) int { return cmp.Compare(a.Name, b.Name) })
	leaves, err := hashChunks(ctx, tensors, opts)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "tandem model digest 1\n%s\n", spec.canonical())
	for i, t := range tensors {
		fmt.Fprintf(&text, "%q %s %v %x\n", t.Name, t.DType, t.Shape, sha256.Sum256(leaves[i]))
	}
	sum := sha256.Sum256([]byte(text.String()))
	return hex.EncodeToString(sum[:16]), nil
}

// canonical states what in a Spec makes two models give different results. Its
// context is the model's own, whatever Options.ContextTokens says.
func (s Spec) canonical() string {
	exact := func(x float64) string { return strconv.FormatFloat(x, 'x', -1, 64) }
	eos := slices.Sorted(slices.Values(s.EOS))
	text := fmt.Sprintf("architecture=%s vocabulary=%d hidden=%d layers=%d heads=%d kvheads=%d headsize=%d ffn=%d context=%d eps=%s theta=%s tied=%t weights=%s bos=%d eos=%v",
		s.Architecture, s.VocabSize, s.HiddenSize, s.Layers, s.Heads, s.KVHeads, s.HeadSize, s.FFNSize, s.ContextTokens,
		exact(float64(s.RMSNormEps)), exact(s.RopeTheta), s.TiedEmbeddings, s.WeightType, s.BOS, eos)
	// What not every model has is stated only where there is some, so that a digest
	// stays as it was before this package knew of it.
	if s.QKVBias {
		text += " qkvbias=true"
	}
	if s.QKNorm {
		text += " qknorm=true"
	}
	if r := s.RopeScaling; r.Kind != "" {
		text += fmt.Sprintf(" rope=%s factor=%s original=%d low=%s high=%s fast=%s slow=%s truncate=%t attention=%s",
			r.Kind, exact(r.Factor), r.OriginalContext, exact(r.LowFreqFactor), exact(r.HighFreqFactor),
			exact(r.BetaFast), exact(r.BetaSlow), r.Truncate, exact(float64(float32(r.AttentionFactor)))) // a logarithm's last bits differ by machine
	}
	if s.LayerWindows != nil {
		text += fmt.Sprintf(" windows=%v", s.LayerWindows)
	}
	return text
}

// hashChunks gives, for each tensor, the hashes of its chunks one after the other.
func hashChunks(ctx context.Context, tensors []Tensor, opts Options) ([][]byte, error) {
	type job struct {
		data   []byte
		to     []byte
		tensor *Tensor
		first  int // element of data
	}
	var jobs []job
	var total int64
	leaves := make([][]byte, len(tensors))
	for i, t := range tensors {
		chunks := slices.Collect(slices.Chunk(t.Data, digestChunkBytes))
		leaves[i] = make([]byte, len(chunks)*sha256.Size)
		for k, chunk := range chunks {
			jobs = append(jobs, job{chunk, leaves[i][k*sha256.Size : (k+1)*sha256.Size], &tensors[i], k * digestChunkBytes / t.DType.Bytes()})
		}
		total += int64(len(t.Data))
	}
	opts.report("digest", 0, total)

	var done int64
	err := parallel.Do(ctx, runtime.GOMAXPROCS(0), int64(len(jobs)), func(i int64) error {
		j := jobs[i]
		sum := sha256.Sum256(j.data)
		copy(j.to, sum[:])
		if at := j.tensor.DType.firstNotFinite(j.data); at >= 0 { // while they are in the cache
			return notFiniteError(*j.tensor, j.first+at)
		}
		return nil
	}, func(i int64) {
		done += int64(len(jobs[i].data))
		opts.report("digest", done, total)
	})
	if err != nil {
		return nil, fmt.Errorf("digest the weights: %w", err)
	}
	return leaves, nil
}

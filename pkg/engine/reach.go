package engine

import (
	"cmp"
	"slices"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

// elementBytes is the size of a weight and of an element of KV where the engine does not
// say: bf16.
const elementBytes = 2

// Cost is what a part of a step needs of a device at least.
type Cost struct {
	// FLOPs counts a multiplication and an addition as two.
	FLOPs float64
	// ReadBytes is what has to be read from memory: weights once, and KV.
	ReadBytes float64
}

// Costs counts what steps of one model need. It is a value without change, safe
// for concurrent use.
//
// FLOPs are 2·(weights of the linear layers) a token, the causal half of
// attention's two products, and one row of the head for each token drawn. Bytes
// are the weights, which a step reads once, the head only if a token is drawn, and
// the keys and values of each sequence's context. In layers with a sliding window a
// token looks at no more than the window, and a sequence's context is the window and
// the step's own tokens: exact for sequences that are longer than the window, and for
// those that are not, an upper bound for a mixture of both.
type Costs struct {
	layerWeights float64 // of all layers' linear parts
	weightBytes  BytesPerWeight
	headWeights  float64
	attention    float64 // FLOPs of one token looking at one position, in one layer
	contextBytes float64 // KV of one position in one layer
	layers       []windowedLayers
}

// windowedLayers are the layers with one sliding window, in tokens; 0: they see all.
type windowedLayers struct{ window, count float64 }

// CostsOf counts for an engine's model, weights and KV.
func CostsOf(e Engine) Costs {
	capacity := e.Capacity()
	return NewCosts(e.Model(), capacity.BytesPerWeight, capacity.KVTokenBytes)
}

// NewCosts counts for a model with weights of so many bytes each, and keys and values of so many a
// token and layer. What is 0 is as in bf16.
func NewCosts(spec model.Spec, weights BytesPerWeight, kvTokenBytes float64) Costs {
	hidden := float64(spec.HiddenSize)
	q, kv := float64(spec.Heads*spec.HeadSize), float64(spec.KVHeads*spec.HeadSize)
	var layers []windowedLayers
	for i := range spec.Layers {
		window := float64(spec.Window(i))
		at := slices.IndexFunc(layers, func(l windowedLayers) bool { return l.window == window })
		if at < 0 {
			at, layers = len(layers), append(layers, windowedLayers{window: window})
		}
		layers[at].count++
	}
	return Costs{
		layerWeights: float64(spec.Layers) * hidden * (2*q + 2*kv + 3*float64(spec.FFNSize)),
		weightBytes:  BytesPerWeight{cmp.Or(weights.Layers, elementBytes), cmp.Or(weights.Head, elementBytes)},
		headWeights:  hidden * float64(spec.VocabSize),
		attention:    4 * q,
		contextBytes: cmp.Or(kvTokenBytes, 2*kv*elementBytes),
		layers:       layers,
	}
}

// Step is the cost of a step, by phase. The weights that a mixed step reads are
// counted once, for the prompts.
func (c Costs) Step(w latency.StepWork) (prefill, decode Cost) {
	prefill, decode = c.part(w.Prefill), c.part(w.Decode)
	first := &prefill
	if w.Prefill.Tokens == 0 {
		first = &decode
	}
	if !w.Empty() {
		first.ReadBytes += c.layerWeights * c.weightBytes.Layers
		if w.Prefill.Samples+w.Decode.Samples > 0 {
			first.ReadBytes += c.headWeights * c.weightBytes.Head
		}
	}
	return prefill, decode
}

func (c Costs) part(w latency.Work) Cost {
	var looks, positions float64 // of all layers
	for _, l := range c.layers {
		// A chunk's tokens look at (end²−start²)/2 positions, all together.
		pairs, context := w.Squares/2, w.Context
		if l.window > 0 {
			pairs = min(pairs, l.window*float64(w.Tokens))
			context = min(context, (l.window-1)*float64(w.Sequences)+float64(w.Tokens))
		}
		looks += l.count * pairs
		positions += l.count * context
	}
	return Cost{
		FLOPs:     2*c.layerWeights*float64(w.Tokens) + c.attention*looks + 2*c.headWeights*float64(w.Samples),
		ReadBytes: c.contextBytes * positions,
	}
}

// Work is what the batch asks to compute.
func (b Batch) Work() latency.StepWork { return b.Computed(nil, 0) }

// Computed is what a step computed of the batch: with the drafts that the engine made, by sequence, and
// without those that it cut. How far into their contexts those were is not known: of attention's products
// they count as much as other tokens of decode.
func (b Batch) Computed(drafts [][]int32, cut int) latency.StepWork {
	var work latency.StepWork
	for i := range b.Sequences {
		s := &b.Sequences[i]
		if i < len(drafts) && len(drafts[i]) > 0 {
			work.AddDrafts(s.Start, len(drafts[i]))
			continue
		}
		s.addTo(&work)
	}
	if decode := &work.Decode; cut > 0 { // who has drafts decodes
		decode.Squares *= 1 - float64(cut)/float64(decode.Tokens)
		decode.Context -= float64(cut)
		decode.Tokens -= cut
		decode.Samples -= cut
	}
	return work
}

func (s *Sequence) addTo(work *latency.StepWork) {
	if s.Sample != nil && s.Sample.Drafts > 0 && s.Sample.Drafts+1 == len(s.Tokens) && s.Start > 0 {
		work.AddDrafts(s.Start, s.Sample.Drafts)
		return
	}
	work.Add(s.Start, len(s.Tokens), s.Sample != nil)
}

// Work is what a step computed of a batch.
func (o *Output) Work(b Batch) latency.StepWork { return b.Computed(o.Drafts, o.Cut) }

package cuda

import (
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/model"
)

// bytesPerWeight is what a step reads for each weight of the layers' matrices and of the
// output matrix: what they take in device memory, with scales, norms and what pads them.
func bytesPerWeight(spec model.Spec, kind WeightType) engine.BytesPerWeight {
	none, one := spec, spec
	none.Layers, one.Layers = 0, 1
	layer := WeightBytes(one, kind) - WeightBytes(none, kind)
	// What a model without layers has beside an output matrix of its own is of no type.
	tied := none
	none.TiedEmbeddings, tied.TiedEmbeddings = false, true
	head := WeightBytes(none, kind) - WeightBytes(tied, BF16)
	q, kv := spec.Heads*spec.HeadSize, spec.KVHeads*spec.HeadSize
	return engine.BytesPerWeight{
		Layers: float64(layer) / float64(spec.HiddenSize*(2*q+2*kv+3*spec.FFNSize)),
		Head:   float64(head) / float64(spec.HiddenSize*spec.VocabSize),
	}
}

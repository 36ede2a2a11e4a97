package cpu

import (
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/model"
)

// WorkspaceOf is the size of the memory that an engine of this package computes in.
func WorkspaceOf(e engine.Engine) int64 { return int64(e.(*cpuEngine).workspace.Bytes()) }

// Angles shows tests the rotary embedding's table of some positions.
func Angles(spec model.Spec, start, tokens int) (cos, sin []float32) {
	n := spec.HeadSize / 2 * tokens
	cos, sin = make([]float32, n), make([]float32, n)
	newRotary(spec).fill(cos, sin, start, tokens)
	return cos, sin
}

// Frequencies shows tests the angles of one token, in radians.
func Frequencies(spec model.Spec) []float32 { return newRotary(spec).frequencies }

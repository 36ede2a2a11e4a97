package cpu

import "github.com/tandem-serving/tandem/pkg/engine"

// WorkspaceOf is the size of the memory that an engine of this package computes in.
func WorkspaceOf(e engine.Engine) int64 { return int64(e.(*cpuEngine).workspace.Bytes()) }

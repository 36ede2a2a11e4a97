package sampler

// The functions whose values are compared with the standard library's.
var (
	Exp = exp
	Log = log
)

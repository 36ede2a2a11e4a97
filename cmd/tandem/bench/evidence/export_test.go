package evidence

// Bisect, Each and NewRatio are for tests.
var (
	Bisect   = bisect
	Each     = each
	NewRatio = newRatio
)

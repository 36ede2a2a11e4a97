package evidence

// Bisect, Each, NewRatio, ShortDay and SizesOf are for tests.
var (
	Bisect   = bisect
	Each     = each
	NewRatio = newRatio
	ShortDay = shortDay
	SizesOf  = sizesOf
)

package processor

// ParseBusy is busy.
func ParseBusy(stat string, cores []int) (float64, bool) { return busy(stat, cores) }

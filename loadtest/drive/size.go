package drive

import "github.com/tandem-serving/tandem/loadtest/record"

// Size is about how much memory the records of a run take, bytes, as MemoryLimit
// counts it.
func Size(run *record.Run) int64 {
	size := int64(len(run.Records)) * recordBytes
	for _, r := range run.Records {
		size += int64(len(r.Arrivals)) * arrivalBytes
	}
	return size
}

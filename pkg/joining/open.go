package joining

// openStreams are the streams whose end has not come: seldom more than two, so that a list is
// looked through sooner than a map.
type openStreams []openStream

type openStream struct {
	Stream
	closing bool // Close was asked for
}

// find is where a stream is, -1 if it is not open.
func (o openStreams) find(s Stream) int {
	for i := range o {
		if o[i].Stream == s {
			return i
		}
	}
	return -1
}

func (o *openStreams) add(s Stream) { *o = append(*o, openStream{Stream: s}) }

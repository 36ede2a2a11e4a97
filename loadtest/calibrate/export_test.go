package calibrate

import (
	"encoding/gob"
	"io"
)

// Join compares the reports of the two parts.
func Join(p Plan, server, load io.Reader) (*Result, error) {
	var saw seen
	if err := gob.NewDecoder(load).Decode(&saw); err != nil {
		return nil, err
	}
	var did served
	if err := gob.NewDecoder(server).Decode(&did); err != nil {
		return nil, err
	}
	return join(p, did, saw)
}

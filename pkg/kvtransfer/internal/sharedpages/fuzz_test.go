package sharedpages

import (
	"bytes"
	"testing"
)

// Whatever comes is read as what it says, or not at all.
func FuzzMessages(f *testing.F) {
	f.Add(Request{Key: 1, Transfer: 2, Secret: 1 << 63}.append(nil))
	f.Add(grant{pageBytes: 4096, pages: 7}.append(nil))
	f.Add([]byte("user 7 asks for pages of user 8"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseRequest(b); err == nil && !bytes.Equal(r.append(nil), b) {
			t.Errorf("%x is read as %+v", b, r)
		}
		if g, err := parseAnswer(b); err == nil && !bytes.Equal(g.append(nil), b) {
			t.Errorf("%x is read as %+v", b, g)
		}
	})
}

package sharedpages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

const (
	// greeting begins a request and an answer, unmapped is a sender's last word.
	greeting = "tandemkv"
	unmapped = "unmapped"
	// numbers is how many follow a greeting, eight bytes each, little-endian.
	requestBytes = len(greeting) + 3*8
	answerBytes  = len(greeting) + 2*8
	// maxRefusalBytes bounds the text of a refusal.
	maxRefusalBytes = 512
)

var errMalformed = errors.New("a malformed message")

// Request asks for the pages.
type Request struct {
	// Key is that of the session's hello, Transfer and Secret are those of a ticket.
	Key, Transfer, Secret uint64
}

func (r Request) append(b []byte) []byte {
	b = append(b, greeting...)
	for _, n := range []uint64{r.Key, r.Transfer, r.Secret} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

func parseRequest(b []byte) (Request, error) {
	if len(b) != requestBytes || string(b[:len(greeting)]) != greeting {
		return Request{}, errMalformed
	}
	number := func(i int) uint64 { return binary.LittleEndian.Uint64(b[len(greeting)+8*i:]) }
	return Request{Key: number(0), Transfer: number(1), Secret: number(2)}, nil
}

// grant is the answer that comes with the descriptor.
type grant struct{ pageBytes, pages uint64 }

func (g grant) append(b []byte) []byte {
	b = append(b, greeting...)
	b = binary.LittleEndian.AppendUint64(b, g.pageBytes)
	return binary.LittleEndian.AppendUint64(b, g.pages)
}

// parseAnswer reads a grant. Any other answer is why there is none, for people.
func parseAnswer(b []byte) (grant, error) {
	if len(b) != answerBytes || string(b[:len(greeting)]) != greeting {
		return grant{}, fmt.Errorf("the receiver refuses: %s", strings.ToValidUTF8(string(b), "?"))
	}
	return grant{
		pageBytes: binary.LittleEndian.Uint64(b[len(greeting):]),
		pages:     binary.LittleEndian.Uint64(b[len(greeting)+8:]),
	}, nil
}

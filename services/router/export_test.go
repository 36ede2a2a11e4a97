package router

import inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

// EncodeToken is an event as it is sent where it is a token without log probabilities.
func EncodeToken(event *inferencev1.GenerateEvent) (encoded []byte, size int, is bool) {
	var t encodedToken
	if !t.set(event) {
		return nil, 0, false
	}
	return t.AppendTo(nil), t.Size(), true
}

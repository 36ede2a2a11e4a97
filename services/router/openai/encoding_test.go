package openai_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// unread fails a test that reads it.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body is read")
	return 0, errTest
}

func TestCompressedBodiesAreRefused(t *testing.T) {
	for _, path := range []string{chats, completions, responses, "/v1/embeddings", "/v1/responses/input_tokens"} {
		for _, encoding := range []string{"gzip", "br", "identity, zstd", strings.Repeat("x", 1000)} {
			q := httptest.NewRequest(http.MethodPost, path, unread{t})
			q.Header.Set("Content-Encoding", encoding)
			w := httptest.NewRecorder()
			handler(t, &fake{}).ServeHTTP(w, q)
			e := errorOf(t, w.Body.String())
			if w.Code != http.StatusUnsupportedMediaType || e.Code != "unsupported_encoding" || !strings.Contains(e.Message, "Content-Encoding") || len(e.Message) > 250 {
				t.Errorf("%s, %.20s: %d %+v", path, encoding, w.Code, e)
			}
		}
	}
	for _, encoding := range []string{"", "identity", "Identity"} {
		q := httptest.NewRequest(http.MethodPost, chats, strings.NewReader(`{`+hi+`}`))
		q.Header.Set("Content-Encoding", encoding)
		w := httptest.NewRecorder()
		if handler(t, &fake{words: []string{"a"}}).ServeHTTP(w, q); w.Code != http.StatusOK {
			t.Errorf("%q: %d %s", encoding, w.Code, w.Body)
		}
	}
}

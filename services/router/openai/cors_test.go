package openai_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/services/router/openai"
)

// A browser sends a page's POST without a preflight if it looks like a form, so the server itself
// has to refuse it.
func TestPagesOfOtherOrigins(t *testing.T) {
	const app, evil = "https://app.example.com", "https://evil.example.com"
	for _, c := range []struct {
		name    string
		allowed []string
		headers map[string]string
		want    int
	}{
		{"no page", nil, nil, 200},
		{"the page of this server", nil, map[string]string{"Origin": "http://SERVER", "Sec-Fetch-Site": "same-origin"}, 200},
		{"the same in an old browser", nil, map[string]string{"Origin": "http://SERVER"}, 200},
		{"behind a proxy that changes the host", nil, map[string]string{"Origin": app, "Sec-Fetch-Site": "same-origin"}, 200},
		{"another page", nil, map[string]string{"Origin": evil, "Sec-Fetch-Site": "cross-site"}, 403},
		{"another page, in an old browser", nil, map[string]string{"Origin": evil}, 403},
		{"another port", nil, map[string]string{"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"}, 403},
		{"a file", nil, map[string]string{"Origin": "null", "Sec-Fetch-Site": "cross-site"}, 403},
		{"a page that is not named", []string{app}, map[string]string{"Origin": evil, "Sec-Fetch-Site": "cross-site"}, 403},
		{"a page that is named", []string{app}, map[string]string{"Origin": app, "Sec-Fetch-Site": "cross-site"}, 200},
		{"all pages", []string{"*"}, map[string]string{"Origin": evil, "Sec-Fetch-Site": "cross-site"}, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fake{words: []string{"a"}}
			h, err := build(f, openai.Config{Origins: c.allowed})
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewServer(h)
			defer server.Close()
			q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+completions, strings.NewReader(`{"prompt":"hi"}`))
			if err != nil {
				t.Fatal(err)
			}
			for name, value := range c.headers {
				q.Header.Set(name, strings.ReplaceAll(value, "SERVER", server.Listener.Addr().String()))
			}
			answer, err := server.Client().Do(q)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if answer.StatusCode != c.want || (len(f.asked) == 1) != (c.want == http.StatusOK) {
				t.Errorf("%d, and %d requests went on", answer.StatusCode, len(f.asked))
			}
		})
	}
}

// A page that may call sends the headers that it likes: OpenAI's library has many of its own.
func TestPreflight(t *testing.T) {
	h, err := build(&fake{}, openai.Config{Origins: []string{"https://app.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	q := httptest.NewRequest(http.MethodGet, "/v1/models", nil)
	q.Header.Set("Origin", "https://app.example.com")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, q)
	if read := w.Header().Get("Access-Control-Expose-Headers"); !strings.Contains(read, "X-Should-Retry") {
		t.Errorf("pages may read %s", read)
	}
	for asked, want := range map[string]string{
		"authorization,content-type,x-stainless-lang,x-stainless-os": "authorization,content-type,x-stainless-lang,x-stainless-os",
		"a\x01b":                  "",
		"<a>":                     "",
		strings.Repeat("a", 1001): "",
		"":                        "",
	} {
		q := httptest.NewRequest(http.MethodOptions, completions, nil)
		q.Header.Set("Origin", "https://app.example.com")
		q.Header.Set("Access-Control-Request-Method", http.MethodPost)
		q.Header.Set("Access-Control-Request-Headers", asked)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, q)
		if got := w.Header().Get("Access-Control-Allow-Headers"); w.Code != http.StatusNoContent || got != want {
			t.Errorf("%q: %d, %q may come", asked, w.Code, got)
		}
		if vary := strings.Join(w.Header().Values("Vary"), ","); vary != "Origin,Access-Control-Request-Headers" {
			t.Errorf("the answer depends on %s", vary)
		}
		if methods := w.Header().Get("Access-Control-Allow-Methods"); !strings.Contains(methods, http.MethodDelete) {
			t.Errorf("a page may not delete a response: %s", methods)
		}
	}
}

package chat_test

import (
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/chat"
)

func TestTry(t *testing.T) {
	for _, test := range []struct{ name, source, want string }{
		{"good", "{{ messages[0].content }}", ""},
		{"refuses by itself", "{{ raise_exception('a system message first') }}", ""},
		{"calls what is not there", "{{ lipsum(3) }}", "lipsum"},
		{"never ends", "{% for a in range(1000000) %}{% for b in range(1000000) %}{% endfor %}{% endfor %}", "too long"},
	} {
		t.Run(test.name, func(t *testing.T) {
			template, err := chat.Parse("model", test.source, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = chat.Try(t.Context(), template)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

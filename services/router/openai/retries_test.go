package openai_test

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// reasonRow is a reason in pkg/api: its name, its first status, and whether to try again.
var reasonRow = regexp.MustCompile(`= "(\w+)" +// (\w+)(?: code| or \w+)?, (again|elsewhere|no)\b`)

// OpenAI's clients repeat some statuses, unless the answer forbids it: it does so if the table of reasons in pkg/api
// says that this does not help.
func TestUselessRetriesAreForbidden(t *testing.T) {
	source, err := os.ReadFile("../../../pkg/api/reason.go")
	if err != nil {
		t.Fatal(err)
	}
	toClients, _, found := strings.Cut(string(source), "// A router to its operators.")
	rows := reasonRow.FindAllStringSubmatch(toClients, -1)
	if !found || len(rows) < 20 {
		t.Fatalf("pkg/api/reason.go has the reasons %v", rows)
	}
	rows = append(rows, []string{"", "NOT_FINITE", "DATA_LOSS", "no"}) // of a router; the table has it among those of workers
	forbidden := 0
	for _, row := range rows {
		reason, status, again := row[1], row[2], row[3]
		if reason == "RECEIVE_TIMEOUT" {
			continue // over HTTP it is a 408
		}
		code := codes.Internal
		if status != "any" {
			if err := code.UnmarshalJSON([]byte(`"` + status + `"`)); err != nil {
				t.Fatal(err)
			}
		}
		w := ask(t, &fake{refuse: rpc.Error(code, reason, "no", 0)}, http.MethodPost, chats, `{`+hi+`}`)
		want := ""
		if repeated := w.Code == http.StatusConflict || w.Code == http.StatusTooManyRequests || w.Code >= 500; repeated && again == "no" {
			want = "false"
			forbidden++
		}
		if got := w.Header().Get("X-Should-Retry"); got != want {
			t.Errorf("%s, %d: %q, want %q", reason, w.Code, got, want)
		}
	}
	if forbidden < 4 {
		t.Errorf("%d reasons forbid another try", forbidden)
	}
	if w := ask(t, &fake{panics: true}, http.MethodPost, chats, `{`+hi+`}`); w.Header().Get("X-Should-Retry") != "false" {
		t.Errorf("a panic: %d %v", w.Code, w.Header())
	}
}

package mesh_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/replay"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// Every core of a mesh does the same again, whatever its clients do, and whether or not its workers
// guess tokens.
func TestRecordedMeshIsReplayed(t *testing.T) {
	for _, speculate := range []string{"off", "ngram", "draft"} {
		t.Run(speculate, func(t *testing.T) { recordAndReplay(t, speculate) })
	}
}

// Whatever a worker is called, its log is a file in the folder.
func TestFilesOfRecords(t *testing.T) {
	for id, want := range map[string]string{
		"decode-1": "decode-1-0000000000000001.events",
		"a/b":      "a%2Fb-0000000000000001.events",
		"../b":     "..%2Fb-0000000000000001.events",
	} {
		o := mesh.RecordConfig{Dir: filepath.Join(t.TempDir(), "events"), Limit: 1 << 20}
		if err := mesh.Record(o, id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
		if _, err := os.Stat(filepath.Join(o.Dir, want)); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// textOf is the text of a stream of completions.
func textOf(t *testing.T, stream string) (text string) {
	for line := range strings.Lines(stream) {
		var event struct{ Choices []struct{ Text string } }
		data, is := strings.CutPrefix(line, "data: ")
		if !is || strings.HasPrefix(data, "[DONE]") {
			continue
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			t.Errorf("%q: %v", data, err)
		}
		for _, choice := range event.Choices {
			text += choice.Text
		}
	}
	return text
}

func recordAndReplay(t *testing.T, speculate string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := upOptions(t)
	o.PrefillWorkers, o.DecodeWorkers = 2, 2
	o.Record.Dir = filepath.Join(t.TempDir(), "events")
	o.Engine.Simulated.StepTime, o.Engine.Simulated.Acceptance = latency.Model{BaseMs: 1}, 0.8
	if o.Decode.Speculate = speculate; speculate == "draft" {
		// The model itself, which is always right. The replay has neither.
		o.Engine.Name, o.Engine.KVMemory, o.Engine.CPU.Threads, o.Decode.DraftModel = engines.CPU, 64<<20, 1, o.Model
	}
	metrics := telemetry.NewRegistry()
	up, ended := startMesh(ctx, t, o, quiet, metrics)
	var clients sync.WaitGroup
	for i := range 40 {
		clients.Go(func() {
			ctx, leave := context.WithCancel(ctx)
			defer leave()
			body := fmt.Sprintf(`{"prompt":%q,"max_tokens":30,"stream":true,"temperature":%d`, strings.Repeat(fmt.Sprint("Once ", i%9, " upon a time "), 1+i), i%2)
			form := regexp.MustCompile("")
			switch i % 8 {
			case 1:
				body += `,"response_format":{"type":"json_object"}`
				form = regexp.MustCompile(`^\{`)
			case 5:
				body += `,"structured_outputs":{"regex":"[0-9]{4}"}`
				form = regexp.MustCompile(`^[0-9]{4}$`)
			}
			body += "}"
			q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+up.HTTP+"/v1/completions", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			q.Header.Set("Content-Type", "application/json")
			answer, err := http.DefaultTransport.RoundTrip(q)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = answer.Body.Close() }()
			var all bytes.Buffer
			if i%5 == 0 {
				_, _ = answer.Body.Read(make([]byte, 10)) // then it leaves
				return
			}
			if _, err := all.ReadFrom(answer.Body); err != nil || !strings.Contains(all.String(), "[DONE]") {
				t.Errorf("the answer is %q, %v", all.String(), err)
			}
			if text := textOf(t, all.String()); !form.MatchString(text) {
				t.Errorf("%q does not match %s", text, form)
			}
		})
	}
	requests := 40
	if o.Engine.Name == engines.CPU { // the other has no embeddings
		requests++
		answer, err := http.Post("http://"+up.HTTP+"/v1/embeddings", "application/json", strings.NewReader(`{"input":"Once upon a time"}`))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		if _ = answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK {
			t.Errorf("embeddings: %s, %q, %v", answer.Status, text, err)
		}
	}
	clients.Wait()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "tandem_worker_accepted_draft_tokens_total" {
			continue
		}
		accepted := 0.0
		for _, m := range f.GetMetric() {
			accepted += m.GetCounter().GetValue()
		}
		if (accepted > 0) != (speculate != "off") {
			t.Errorf("%v guesses were right", accepted)
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(o.Record.Dir, "*.events"))
	if err != nil || len(logs) != 5 {
		t.Fatalf("logs %q, %v", logs, err)
	}
	cores := make(map[string]int)
	for _, path := range logs {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		result, err := replay.Run(t.Context(), bytes.NewReader(data))
		if err != nil || result.Difference != nil || result.Incomplete != "" || result.Events < 10 {
			t.Errorf("%s: %+v, %v", path, result, err)
		}
		for kind, n := range result.Cores {
			cores[kind] += n
		}
	}
	if want := map[string]int{"routing": 1, "request": requests, "worker": 4}; fmt.Sprint(cores) != fmt.Sprint(want) {
		t.Errorf("the logs are of %v and not of %v", cores, want)
	}
}

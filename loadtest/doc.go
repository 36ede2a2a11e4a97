// Package loadtest measures a server that streams tokens, from beginning to end: one
// rate, one concurrency, a sweep over rates, or the search for the highest rate that
// meets an SLO. A workload is sent by a client when it is due, the records of what came
// back are summarized and explained, and a report comes out.
//
// Package client speaks Tandem's API and OpenAI's; whatever else streams tokens is
// measured by an implementation of client.Client:
//
//	cfg := loadtest.DefaultConfig()
//	cfg.FindMax, cfg.SLO = true, "ttft:p99<500ms,tpot:p99<30ms"
//	server, err := client.NewOpenAI(client.OpenAIConfig{URL: "http://127.0.0.1:8000"})
//	// ...
//	out, err := loadtest.Run(ctx, cfg, server, nil)
//	// ...
//	err = out.Report.WriteTable(os.Stdout, 100)
//
// Anything may import it. It starts no goroutines that outlive Run.
package loadtest

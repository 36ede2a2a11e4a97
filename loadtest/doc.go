// Package loadtest measures a server that streams tokens: at one rate or concurrency, in
// a sweep over rates, or in a search for the highest rate that meets an SLO. It sends a
// workload, summarizes and explains the records, and returns a report.
//
// Package client supports Tandem's API and OpenAI's. Implement client.Client to measure
// other servers:
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

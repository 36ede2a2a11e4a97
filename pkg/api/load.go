package api

import "time"

const (
	// ReportSpacing is the least time between two load reports of a worker. Routers distrust one that
	// sends more. They count their own requests themselves, so a report need not be instant.
	ReportSpacing = 25 * time.Millisecond
	// PromptLengths is how many lengths of prompts a load report tells apart, in
	// LoadReport.prompt_tokens_by_length.
	PromptLengths = 32
)

package quota

import (
	"fmt"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// Limits are what a tenant may use over all routers together; 0: no limit, but where said.
type Limits struct {
	// RequestsPerMinute and TokensPerMinute are of any minute. Tokens are those of prompts and
	// answers.
	RequestsPerMinute, TokensPerMinute int64
	// Concurrency is the most requests at a time.
	Concurrency int64
	// PromptTokens and AnswerTokens bound one request.
	PromptTokens, AnswerTokens int64
	// MaxPriority is the highest priority of a request; 0 allows none above that of others.
	MaxPriority int64
}

// LimitsOf are those of a message; nil: none.
func LimitsOf(m *controlv1.TenantLimits) Limits {
	return Limits{
		RequestsPerMinute: int64(m.GetRequestsPerMinute()), TokensPerMinute: int64(m.GetTokensPerMinute()), Concurrency: int64(m.GetConcurrency()),
		PromptTokens: int64(m.GetPromptTokens()), AnswerTokens: int64(m.GetAnswerTokens()), MaxPriority: int64(m.GetMaxPriority()),
	}
}

// MostAnswerTokens is how long the answer to a prompt of so many tokens may be, at most most.
func (l Limits) MostAnswerTokens(promptTokens, most int64) int64 {
	if l.AnswerTokens > 0 {
		most = min(most, l.AnswerTokens)
	}
	if l.TokensPerMinute > 0 {
		most = min(most, l.TokensPerMinute-promptTokens)
	}
	return most
}

// Exceeded is the error of a request that would use more than its tenant may.
type Exceeded struct {
	// What there is too much of: "requests", "tokens" or "concurrency".
	What string
	// Limit of that.
	Limit int64
	// RetryAfter is when enough of it is free again, as far as this router knows.
	RetryAfter time.Duration
}

// Error says which limit is reached.
func (e *Exceeded) Error() string {
	if e.What == names[running] {
		return fmt.Sprintf("the tenant's limit is %d requests at a time, and no more of them are left", e.Limit)
	}
	return fmt.Sprintf("the tenant's limit is %d %s a minute, and too few of them are left", e.Limit, e.What)
}

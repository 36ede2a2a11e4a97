package trace

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/loadtest/internal/jsonerror"
)

// mooncake reads Mooncake's traces: one JSON object per line.
type mooncake struct {
	lines *lines
	clock clock
}

func (m *mooncake) Format() Format { return Mooncake }

func (m *mooncake) Next() (Entry, error) {
	line, err := m.lines.next()
	if err != nil {
		return Entry{}, err
	}
	var raw struct {
		Timestamp *float64 `json:"timestamp"`
		Input     *int     `json:"input_length"`
		Output    *int     `json:"output_length"`
		Blocks    []uint64 `json:"hash_ids"`
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		offset, problem := jsonerror.Explain(err)
		return Entry{}, m.lines.fail(max(int(offset), 1), `%s: expected {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}`, problem)
	}
	// at is a key's column, as far as the line tells.
	at := func(key string) int { return 1 + max(0, bytes.Index(line, []byte(strconv.Quote(key)))) }
	switch {
	case raw.Timestamp == nil:
		return Entry{}, m.lines.fail(1, "timestamp is missing: expected milliseconds since the start")
	case raw.Input == nil:
		return Entry{}, m.lines.fail(1, "input_length is missing: expected the number of tokens of the prompt")
	case raw.Output == nil:
		return Entry{}, m.lines.fail(1, "output_length is missing: expected the number of tokens of the answer")
	case *raw.Timestamp < 0 || *raw.Timestamp > maxMillis:
		return Entry{}, m.lines.fail(at("timestamp"), "timestamp is %g: expected milliseconds, from 0 to %g", *raw.Timestamp, maxMillis)
	case *raw.Input < 0 || *raw.Input > maxTokens:
		return Entry{}, m.lines.fail(at("input_length"), "input_length is %d: expected a number of tokens from 0 to 2^30", *raw.Input)
	case *raw.Output < 0 || *raw.Output > maxTokens:
		return Entry{}, m.lines.fail(at("output_length"), "output_length is %d: expected a number of tokens from 0 to 2^30", *raw.Output)
	}
	// Some traces omit the id of the last, partial block.
	whole, all := *raw.Input/BlockTokens, (*raw.Input+BlockTokens-1)/BlockTokens
	if len(raw.Blocks) != 0 && len(raw.Blocks) != whole && len(raw.Blocks) != all {
		return Entry{}, m.lines.fail(at("hash_ids"), "input_length %d has %d hash_ids: expected %d, one for each %d tokens", *raw.Input, len(raw.Blocks), all, BlockTokens)
	}
	since, err := m.clock.at(time.UnixMicro(int64(math.Round(*raw.Timestamp * 1000))))
	if err != nil {
		return Entry{}, m.lines.fail(at("timestamp"), "%v", err)
	}
	return Entry{At: since, PromptTokens: *raw.Input, OutputTokens: *raw.Output, Blocks: raw.Blocks}, nil
}

// maxMillis is about 290 years, the range of time.Duration.
const maxMillis = 9e12

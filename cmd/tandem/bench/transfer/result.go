package transfer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// Result is what was measured. What was not asked for is left out.
type Result struct {
	Plan
	SliceBytes int `json:"slice_bytes"`
	Layers     int `json:"layers"`
	// BarrierNs is how long two cores take to wait for each other, the best of means, in
	// nanoseconds: about 60 within a complex of cores with one cache, over 200 between two. 0: the
	// process has one core.
	BarrierNs float64 `json:"barrier_ns,omitempty"`
	// Checksum names what every chunk carries and every receiver checks.
	Checksum string `json:"checksum"`

	// GBytesPerS is payload over the plan's transport, the best round; 10⁹ bytes.
	GBytesPerS float64 `json:"gbytes_per_s,omitempty"`
	// RawTCP and RawUnix are the best plain copies of the same run, tries before its
	// rounds too, of all sizes of writes, over as many connections, out of the same pages into the same pages.
	RawTCP  float64 `json:"raw_tcp_gbytes_per_s,omitempty"`
	RawUnix float64 `json:"raw_unix_gbytes_per_s,omitempty"`
	// Ratio is GBytesPerS over RawTCP; RatioMedian the middle one of the rounds, each
	// against the better plain copy of its round.
	Ratio       float64 `json:"ratio,omitempty"`
	RatioMedian float64 `json:"ratio_median,omitempty"`
	// UnixOverTCP is the transfer over a Unix socket against the transfer over TCP,
	// best rounds; UnixRatio against a plain copy over a Unix socket.
	UnixOverTCP float64 `json:"unix_over_tcp,omitempty"`
	UnixRatio   float64 `json:"unix_ratio,omitempty"`
	// RawShm is the best plain copy from memory to memory on one core, ShmRatio the transfer into
	// mapped pages against it, ShmOverTCP against the transfer over TCP.
	RawShm     float64 `json:"raw_shm_gbytes_per_s,omitempty"`
	ShmRatio   float64 `json:"shm_ratio,omitempty"`
	ShmOverTCP float64 `json:"shm_over_tcp,omitempty"`
	// TLS is payload over TCP with TLS, both sides known by their certificates; AES what one core
	// encrypts or decrypts, whichever is slower. TLSOfAllowed is TLS over what the transfer
	// without TLS and AES allow, one after the other: 1/(1/GBytesPerS + 1/AES), of TCP;
	// TLSOfAllowedMedian is the middle one of the rounds, each against what was measured in its
	// round. TLSCPUOfAllowed is the processor time that they allow, without TLS and for both sides
	// of AES, over what TLS takes: other work on the machine changes it least.
	TLS                float64 `json:"tls_gbytes_per_s,omitempty"`
	AES                float64 `json:"aes_gbytes_per_s,omitempty"`
	TLSOfAllowed       float64 `json:"tls_of_allowed,omitempty"`
	TLSOfAllowedMedian float64 `json:"tls_of_allowed_median,omitempty"`
	TLSCPUOfAllowed    float64 `json:"tls_cpu_of_allowed,omitempty"`
	// CPUOverRaw is the processor time of a byte over the plan's transport against
	// that of a plain copy over the same.
	CPUOverRaw float64 `json:"cpu_over_raw,omitempty"`
	Rates      []Rate  `json:"rates,omitempty"`

	Allocations *Allocations `json:"allocations,omitempty"`
	Behind      *Behind      `json:"behind,omitempty"`
	Exposed     *Exposed     `json:"exposed,omitempty"`
	// Kills are how long blocks were held after one side was killed, KillSMax is the
	// longest of those that were killed once the receiver knew of them.
	Kills    []Kill  `json:"kills,omitempty"`
	KillSMax float64 `json:"kill_s_max,omitempty"`

	// Valid: the run says something of the program. Reason says why not. Plain copies
	// are what tells: nil where none were made.
	Valid  *bool  `json:"valid,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// maxSpread is by how much the middle round of a plain copy may fall short of its
// best: beyond that something else had the machine.
const maxSpread = .25

func (r *Result) setRates(rates []Rate) {
	r.Rates = rates
	tcp, unix := ours(rates, TCP), ours(rates, Unix)
	rawTCP, rawUnix := bestPlain(rates, TCP), bestPlain(rates, Unix)
	r.RawTCP = rawTCP.GBytesPerS
	chosen, chosenRaw := tcp, rawTCP
	if unix != nil {
		r.RawUnix = rawUnix.GBytesPerS
		r.UnixOverTCP = unix.GBytesPerS / tcp.GBytesPerS
		r.UnixRatio = unix.GBytesPerS / rawUnix.GBytesPerS
		if r.Transport == Unix {
			chosen, chosenRaw = unix, rawUnix
		}
	}
	if shm := ours(rates, Shm); shm != nil {
		chosen, chosenRaw = shm, bestPlain(rates, Shm)
		r.RawShm = chosenRaw.GBytesPerS
		r.ShmOverTCP, r.ShmRatio = shm.GBytesPerS/tcp.GBytesPerS, shm.GBytesPerS/chosenRaw.GBytesPerS
	}
	if encrypted := ours(rates, transportTLS); encrypted != nil {
		r.setTLS(tcp, encrypted, named(rates, sealRate), named(rates, openRate))
	}
	r.GBytesPerS = chosen.GBytesPerS
	r.Ratio = chosen.GBytesPerS / r.RawTCP
	r.RatioMedian = medianRatio(rates, chosen)
	if chosenRaw.CPUNsPerByte > 0 {
		r.CPUOverRaw = chosen.CPUNsPerByte / chosenRaw.CPUNsPerByte
	}
	var reasons []string
	for _, rate := range []*Rate{rawTCP, rawUnix, bestPlain(rates, Shm)} {
		if rate != nil && rate.Spread > maxSpread {
			reasons = append(reasons, fmt.Sprintf("%s: the median round is %.0f%% below the best: something else used the machine", rate.Name, 100*rate.Spread))
		}
	}
	r.Valid, r.Reason = new(len(reasons) == 0), strings.Join(reasons, "; ")
}

func (r *Result) setTLS(tcp, encrypted, seal, open *Rate) {
	r.TLS, r.AES = encrypted.GBytesPerS, min(seal.GBytesPerS, open.GBytesPerS)
	r.TLSOfAllowed = r.TLS * (1/tcp.GBytesPerS + 1/r.AES)
	ratios := make([]float64, len(encrypted.rounds))
	for i, rate := range encrypted.rounds {
		ratios[i] = rate * (1/tcp.rounds[i] + 1/min(seal.rounds[i], open.rounds[i]))
	}
	r.TLSOfAllowedMedian = stats.Median(ratios)
	if encrypted.CPUNsPerByte > 0 {
		r.TLSCPUOfAllowed = (tcp.CPUNsPerByte + seal.CPUNsPerByte + open.CPUNsPerByte) / encrypted.CPUNsPerByte
	}
}

// ours is the transfer over a transport; nil if it took no part.
func ours(rates []Rate, transport string) *Rate { return named(rates, "transfer "+transport) }

func named(rates []Rate, name string) *Rate {
	i := slices.IndexFunc(rates, func(r Rate) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &rates[i]
}

func isPlain(r Rate, transport string) bool { return strings.HasPrefix(r.Name, "plain "+transport+" ") }

// bestPlain is the best plain copy over a transport; nil if none took part.
func bestPlain(rates []Rate, transport string) *Rate {
	var best *Rate
	for i := range rates {
		if isPlain(rates[i], transport) && (best == nil || rates[i].GBytesPerS > best.GBytesPerS) {
			best = &rates[i]
		}
	}
	return best
}

// medianRatio is the middle one of chosen's rounds, each over the better plain TCP
// copy of its round.
func medianRatio(rates []Rate, chosen *Rate) float64 {
	ratios := make([]float64, len(chosen.rounds))
	for round := range ratios {
		plain := 0.0
		for _, r := range rates {
			if isPlain(r, TCP) {
				plain = max(plain, r.rounds[round])
			}
		}
		ratios[round] = chosen.rounds[round] / plain
	}
	return stats.Median(ratios)
}

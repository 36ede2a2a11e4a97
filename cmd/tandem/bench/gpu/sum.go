package gpu

import (
	"slices"
	"time"
)

// sum makes the figures of the rounds, one at least.
func (r *Result) sum(rounds []round, decoders []*decoder, readers []int) {
	r.Limits = Limits{
		CopyGBytes:         figure(rounds, func(r round) float64 { return r.limits.CopyBytes / 1e9 }),
		ReadGBytes:         figure(rounds, func(r round) float64 { return r.limits.ReadBytes / 1e9 }),
		ProductGFLOPS:      figure(rounds, func(r round) float64 { return r.limits.ProductFLOPs / 1e9 }),
		HostToDeviceGBytes: figure(rounds, func(r round) float64 { return r.limits.HostToDeviceBytes / 1e9 }),
		DeviceToHostGBytes: figure(rounds, func(r round) float64 { return r.limits.DeviceToHostBytes / 1e9 }),
		GraphKernelUs:      least(rounds, func(r round) time.Duration { return r.limits.GraphKernel }),
	}
	rate := func(amount float64) Figure {
		return figure(rounds, func(now round) float64 { return amount / now.prefill.Seconds() })
	}
	r.Prefill.Tokens, r.Prefill.GFLOPS = rate(float64(r.PromptTokens)), rate(r.Prefill.FLOPsComputed/1e9)
	product := r.Limits.ProductGFLOPS.Median
	if by := figure(rounds, func(r round) float64 { return r.limits.CublasLtFLOPs / 1e9 }); by.Best > 0 {
		r.Limits.CublasLtGFLOPS = &by
		product = max(product, by.Median)
	}
	r.Prefill.OfProduct = r.Prefill.GFLOPS.Median / product
	floor := max(r.Limits.CopyGBytes.Median, r.Limits.ReadGBytes.Median)
	for i, d := range decoders {
		r.Decode = append(r.Decode, r.decodeOf(rounds, i, d, floor))
	}
	for i, n := range readers {
		read := KVRead{
			Readers: n,
			Alone:   figure(rounds, func(now round) float64 { return now.reads[i].alone / 1e9 }),
			Beside:  figure(rounds, func(now round) float64 { return now.reads[i].beside / 1e9 }),
			StepMs:  times(rounds, func(now round) steps { return now.reads[i].steps }),
		}
		read.DecodeWhileCopying = read.StepMs.P50 / r.Decode[0].StepMs.P50
		r.KVRead = append(r.KVRead, read)
	}
}

// decodeOf makes the figures of one batch; floor is in GB/s.
func (r *Result) decodeOf(rounds []round, i int, d *decoder, floor float64) Decode {
	long := func(now round) steps { return now.decode[i].long }
	made := Decode{
		Batch: d.batch, ContextTokens: d.context, StepBytes: d.bytes(d.context, r.DecodeSteps), StepMs: times(rounds, long),
		Tokens: figure(rounds, func(now round) float64 {
			return float64(d.batch*r.DecodeSteps) / long(now).took.Seconds()
		}),
	}
	made.OfFloor = made.StepBytes / 1e6 / floor / made.StepMs.P50
	var cpu, host []float64
	for _, now := range rounds {
		cpu = append(cpu, 1e6*long(now).cpu.Seconds()/float64(r.DecodeSteps))
		host = append(host, 1e6*long(now).host.Seconds()/float64(r.DecodeSteps))
	}
	made.CPUUs, made.HostUs = quantile(cpu, 0.5), quantile(host, 0.5)
	made.ShortTokens = d.short()
	made.ShortStepMs = times(rounds, func(now round) steps { return now.decode[i].short }).P50
	if more := made.StepMs.P50 - made.ShortStepMs; made.ShortTokens > 0 && more > 0 {
		made.AttentionGBytes = (made.StepBytes - d.bytes(made.ShortTokens, r.DecodeSteps)) / 1e6 / more
		made.AttentionOfFloor = made.AttentionGBytes / floor
	}
	return made
}

// least is figure for durations, in microseconds, whose best is the smallest.
func least(rounds []round, value func(round) time.Duration) Figure {
	var all []float64
	for _, r := range rounds {
		all = append(all, 1e6*value(r).Seconds())
	}
	return Figure{slices.Min(all), quantile(all, 0.5)}
}

package kernels

/*
#include "tdm_launch.h"
*/
import "C"

import (
	"bytes"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

// entries are the names of a PTX text's kernels.
func entries(ptx []byte) []string {
	const begin = ".visible .entry "
	var names []string
	for line := range bytes.Lines(ptx) {
		if rest, ok := bytes.CutPrefix(line, []byte(begin)); ok {
			name, _, _ := bytes.Cut(rest, []byte("("))
			names = append(names, string(bytes.TrimSpace(name)))
		}
	}
	return names
}

// threads of a block, by family.
const (
	threadsRow       = C.TDM_ROW_THREADS
	threadsDraw      = C.TDM_DRAW_THREADS
	threadsProduct   = C.TDM_PRODUCT_THREADS
	threadsAttention = C.TDM_ATTENTION_THREADS
	threadsTall      = C.TDM_TALL_THREADS
)

// launch appends a launch of k.
func launch[A any](p *driver.Program, k kernel, x, y, threads int, args A) {
	driver.Launch(p, k.Function, [3]int{x, y, 1}, threads, k.shared, args)
}

// Each of the methods below appends one launch to a program. rows is the most rows that
// the step may have, at least 1: how many it has is in device memory, see tdm_counts.

// Embed appends tdm_embed.
func (s *Set) Embed(p *driver.Program, rows int, args EmbedArgs) {
	launch(p, s.embed, rows, 1, threadsRow, args)
}

// Norm appends tdm_norm.
func (s *Set) Norm(p *driver.Program, rows int, args NormArgs) {
	launch(p, s.norm, rows, 1, threadsRow, args)
}

// Heads appends tdm_heads.
func (s *Set) Heads(p *driver.Program, rows int, args HeadsArgs) {
	launch(p, s.heads, rows, up(int(args.Heads+2*args.KVHeads), C.TDM_HEADS_BLOCK), threadsRow, args)
}

// Gather appends tdm_gather.
func (s *Set) Gather(p *driver.Program, rows int, args GatherArgs) {
	launch(p, s.gather, rows, 1, threadsRow, args)
}

// SwiGLU appends tdm_swiglu.
func (s *Set) SwiGLU(p *driver.Program, rows int, args SwiGLUArgs) {
	launch(p, s.swiglu, rows, 1, threadsRow, args)
}

// Draw appends tdm_draw.
func (s *Set) Draw(p *driver.Program, rows int, args DrawArgs) {
	launch(p, s.draw, rows, 1, threadsDraw, args)
}

// JoinBlocks is how many blocks of Join share an item.
const JoinBlocks = C.TDM_JOIN_BLOCKS

// Join appends tdm_join, over so many blocks for each KV head.
func (s *Set) Join(p *driver.Program, blocks int, args JoinArgs) {
	launch(p, s.join, blocks, int(args.KVHeads), threadsAttention, args)
}

// sharedReserved is the shared memory that a block takes beside its own.
const sharedReserved = 1 << 10

// spread is a kernel of which a multiprocessor takes no more blocks of a grid than its share.
// Blocks that begin early find room on some multiprocessors first, and would all go there.
// What keeps them apart is shared memory that they do not need.
func (s *Set) spread(k kernel, blocks int) kernel {
	if info := s.device.Info(); info.Capability >= 90 {
		k.shared = max(k.shared, spreadShared(up(blocks, info.Multiprocessors), info))
	}
	return k
}

// spreadShared is so much shared memory of a block that a multiprocessor has room for some
// blocks, and not for one more.
func spreadShared(blocks int, info driver.Info) int {
	return ((info.SharedPerBlock+sharedReserved)/(blocks+1)-sharedReserved)/128*128 + 128
}

// spreadMost is the most shared memory that spread gives a kernel.
func spreadMost(shared int, info driver.Info) int {
	if shared == 0 {
		return 0
	}
	return max(shared, spreadShared(1, info))
}

// up is a quotient, rounded up.
func up(n, by int) int { return (n + by - 1) / by }

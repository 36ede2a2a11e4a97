package kernels

/*
#include "tdm_launch.h"

// Go cannot call what takes arguments and is no function.
static int thin_shared(int rows) { return TDM_THIN_SHARED(rows); }
static int thin_outputs(int paired) { return TDM_THIN_OUTPUTS(paired); }
static int tiled_outputs(int swiglu) { return TDM_TILED_OUTPUTS(swiglu); }
static int tiled_threads(int rows) { return TDM_TILED_THREADS(rows); }
static int64_t arranged_bytes(int64_t k, int64_t rows) { return TDM_ARRANGED_BYTES(k, rows); }
static int64_t parts_bytes(int64_t tiles, int64_t rows) { return TDM_PARTS_BYTES(tiles, rows); }
*/
import "C"

import (
	"slices"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

// Epilogue is what a product does with its sums: see tdm_product_args.
type Epilogue int

// The epilogues.
const (
	Store Epilogue = iota
	Add
	SwiGLU
)

func epilogues() []string { return []string{"store", "add", "swiglu"} }

// products are the kernels of one epilogue and one type of weights.
type products struct {
	thin           []kernel // by thinRows
	tiled          []kernel // by tiledRows
	sliced, joined kernel
	wide           kernel // no function: there is none, of the device or the type
}

// typed are the products with weights of one type.
type typed struct {
	by    [3]products // epilogue
	heads []kernel    // by thinRows
}

// thinRows are the most rows of each thin product; more are tiled.
func thinRows() []int { return []int{8, 16} }

// isThin says whether Product is a thin one for so many rows.
func isThin(rows int) bool { return rows <= slices.Max(thinRows()) }

// tiledRows are the rows of a block of each tiled product.
func tiledRows() []int { return []int{64, 128} }

// fewTiles is how many blocks a tiled product needs to be worth it: fewer leave most of a
// large GPU, of some 130 multiprocessors, without work. They are sliced.
const fewTiles = 96

// wideFrom is from how many rows on a wide product is quicker than a tiled one.
const wideFrom = 129

// hasWide says whether a device has the wide products, which are for bf16 weights.
func hasWide(info driver.Info) bool {
	return info.Capability == 90 && info.SharedPerBlock >= C.TDM_WIDE_SHARED
}

// findWide finds the wide kernel of an epilogue.
func findWide(name string, get getter) kernel {
	return get(C.TDM_WIDE_SHARED, "product_wide_%s", name)
}

// findProducts finds the kernels of an epilogue for weights of a type.
func findProducts(name string, weights Weights, get getter) products {
	suffix := weights.suffix()
	p := products{thin: findThin(name, suffix, get)}
	for _, rows := range tiledRows() {
		p.tiled = append(p.tiled, get(C.TDM_TILED_SHARED, "product_tiled_%s_%d%s", name, rows, suffix))
	}
	p.sliced = get(C.TDM_TILED_SHARED, "product_sliced_%s%s", name, suffix)
	p.joined = get(C.TDM_JOINED_SHARED, "product_joined_%s", name)
	return p
}

// Product appends the product with weights of a type that should be quickest for so many
// rows: thin for a few, tiled for more, sliced and joined where there are few tiles and args
// has Parts, wide for many where it has Arranged. Which one it is changes no bit.
func (s *Set) Product(p *driver.Program, weights Weights, then Epilogue, rows int, args ProductArgs) {
	k := &s.products[weights].by[then]
	for i, most := range thinRows() {
		if rows <= most {
			blocks := up(int(args.Outputs), thinOutputs(swiglu(then)))
			launch(p, s.spread(k.thin[i], blocks), blocks, 1, threadsProduct, args)
			return
		}
	}
	tiles := tilesOf(then, int(args.Outputs))
	if args.Parts != 0 && sliced(tiles, rows) {
		y := up(rows, C.TDM_SLICED_ROWS)
		launch(p, k.sliced, tiles*C.TDM_SLICES, y, tiledThreads(C.TDM_SLICED_ROWS), args)
		launch(p, k.joined, tiles*(C.TDM_SLICED_ROWS/8), y, threadsProduct, args)
		return
	}
	if then != Add && args.Norm.Squares != 0 {
		launch(p, s.roots, up(rows, C.TDM_ROOTS_ROWS), 1, threadsRow, RootsArgs{Count: args.Count, Norm: args.Norm})
	}
	if rows >= wideFrom && k.wide.Function != nil && args.Arranged != 0 {
		launch(p, s.arrange, int(args.K)/KBlock, up(rows, C.TDM_WIDE_ROWS), C.TDM_ARRANGE_THREADS, args)
		launch(p, k.wide, tiles, up(rows, C.TDM_WIDE_ROWS), C.TDM_WIDE_THREADS, args)
		return
	}
	i := tiledIndex(rows)
	launch(p, k.tiled[i], tiles, up(rows, tiledRows()[i]), tiledThreads(tiledRows()[i]), args)
}

// FusesHeads says whether ProductHeads computes heads of a size for so many rows, if they
// have no norm.
func FusesHeads(size, rows int) bool {
	return size%HeadBlock == 0 && isThin(rows)
}

// ProductHeads appends the product of queries, keys and values that does what Heads does.
// FusesHeads says where there is one.
func (s *Set) ProductHeads(p *driver.Program, weights Weights, rows int, args ProductHeadsArgs) {
	for i, most := range thinRows() {
		if rows <= most {
			blocks := up(int(args.Product.Outputs), thinOutputs(1))
			launch(p, s.spread(s.products[weights].heads[i], blocks), blocks, 1, threadsProduct, args)
			return
		}
	}
}

// findThin finds the thin kernels of an epilogue.
func findThin(name, suffix string, get getter) (thin []kernel) {
	for _, rows := range thinRows() {
		thin = append(thin, get(int(C.thin_shared(C.int(rows))), "product_thin_%s_%d%s", name, rows, suffix))
	}
	return thin
}

// PartsBytes is the device memory that ProductArgs.Parts must have for a product of at
// most so many rows.
func PartsBytes(then Epilogue, outputs, rows int) int64 {
	tiles, most := tilesOf(then, outputs), int64(0)
	for n := min(rows, C.TDM_SLICED_ROWS); ; n = min(n+C.TDM_SLICED_ROWS, rows) {
		if !isThin(n) && sliced(tiles, n) {
			most = int64(C.parts_bytes(C.int64_t(tiles), C.int64_t(n)))
		}
		if n == rows || !sliced(tiles, n) {
			return most
		}
	}
}

// ArrangedBytes is the device memory that ProductArgs.Arranged must have for products of at
// most so many rows and k, with weights of a type. 0: none of them is wide.
func ArrangedBytes(weights Weights, rows, k int) int64 {
	if weights != BF16 || rows < wideFrom {
		return 0
	}
	return int64(C.arranged_bytes(C.int64_t(up(k, KBlock)*KBlock), C.int64_t(rows)))
}

// sliced says whether rows, more than the thin products take, are sliced.
func sliced(tiles, rows int) bool { return tiles*up(rows, tiledRows()[tiledIndex(rows)]) < fewTiles }

// tiledIndex is the one of tiledRows that serves so many rows.
func tiledIndex(rows int) int {
	for i, most := range tiledRows() {
		if rows <= most {
			return i
		}
	}
	return len(tiledRows()) - 1
}

// tiledThreads is the threads of a block of a tiled or sliced product of so many rows.
func tiledThreads(rows int) int { return int(C.tiled_threads(C.int(rows))) }

// tilesOf is how many tiles of outputs a tiled or sliced product has.
func tilesOf(then Epilogue, outputs int) int {
	return up(outputs, int(C.tiled_outputs(swiglu(then))))
}

// thinOutputs is how many outputs a block of a thin product computes, whose outputs are of
// two sums if paired is 1.
func thinOutputs(paired C.int) int {
	return int(C.thin_outputs(paired))
}

// thinShared is the most shared memory of a block of a thin product.
func thinShared() (most int) {
	for _, rows := range thinRows() {
		most = max(most, int(C.thin_shared(C.int(rows))))
	}
	return most
}

func swiglu(then Epilogue) C.int {
	if then == SwiGLU {
		return 1
	}
	return 0
}

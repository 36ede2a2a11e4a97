package kernels

/*
#include "tdm_launch.h"

// Go cannot call what takes arguments and is no function.
static int thin_shared(int rows) { return TDM_THIN_SHARED(rows); }
static int thin_outputs(int rows, int swiglu) { return TDM_THIN_OUTPUTS(rows, swiglu); }
static int tiled_shared(int rows) { return TDM_TILED_SHARED(rows); }
static int tiled_outputs(int swiglu) { return TDM_TILED_OUTPUTS(swiglu); }
static int64_t parts_bytes(int64_t tiles, int64_t rows) { return TDM_PARTS_BYTES(tiles, rows); }
*/
import "C"

import "github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"

// Epilogue is what a product does with its sums: see tdm_product_args.
type Epilogue int

// The epilogues.
const (
	Store Epilogue = iota
	Add
	SwiGLU
)

func epilogues() []string { return []string{"store", "add", "swiglu"} }

// products are the kernels of one epilogue.
type products struct {
	thin           []kernel // by thinRows
	tiled          []kernel // by tiledRows
	sliced, joined kernel
}

// thinRows are the most rows of each thin product; more are tiled.
func thinRows() []int { return []int{8, 16, 32} }

// tiledRows are the rows of a block of each tiled product.
func tiledRows() []int { return []int{64, 128} }

// fewTiles is how many blocks a tiled product needs to be worth it: fewer leave most of a
// large GPU, of some 130 multiprocessors, without work. They are sliced.
const fewTiles = 96

// findProducts finds the kernels of an epilogue.
func findProducts(name string, get func(shared int, format string, args ...any) kernel) products {
	var p products
	for _, rows := range thinRows() {
		p.thin = append(p.thin, get(int(C.thin_shared(C.int(rows))), "product_thin_%s_%d", name, rows))
	}
	for _, rows := range tiledRows() {
		p.tiled = append(p.tiled, get(int(C.tiled_shared(C.int(rows))), "product_tiled_%s_%d", name, rows))
	}
	p.sliced = get(int(C.tiled_shared(C.TDM_SLICED_ROWS)), "product_sliced_%s", name)
	p.joined = get(0, "product_joined_%s", name)
	return p
}

// Product appends the product that should be quickest for so many rows: thin for a few,
// tiled for more, sliced and joined where there are few tiles and args has Parts. Which
// one it is changes no bit.
func (s *Set) Product(p *driver.Program, then Epilogue, rows int, args ProductArgs) {
	k := &s.products[then]
	for i, most := range thinRows() {
		if rows <= most {
			launch(p, k.thin[i], up(int(args.Outputs), thinOutputs(most, then)), 1, threadsProduct, args)
			return
		}
	}
	tiles := tilesOf(then, int(args.Outputs))
	if args.Parts != 0 && sliced(tiles, rows) {
		y := up(rows, C.TDM_SLICED_ROWS)
		launch(p, k.sliced, tiles*C.TDM_SLICES, y, threadsProduct, args)
		launch(p, k.joined, tiles*(C.TDM_SLICED_ROWS/8), y, threadsProduct, args)
		return
	}
	i := tiledIndex(rows)
	launch(p, k.tiled[i], tiles, up(rows, tiledRows()[i]), threadsProduct, args)
}

// PartsBytes is the device memory that ProductArgs.Parts must have for a product of at
// most so many rows.
func PartsBytes(then Epilogue, outputs, rows int) int64 {
	tiles, most := tilesOf(then, outputs), int64(0)
	for n := min(rows, C.TDM_SLICED_ROWS); ; n = min(n+C.TDM_SLICED_ROWS, rows) {
		if n > thinRows()[len(thinRows())-1] && sliced(tiles, n) {
			most = int64(C.parts_bytes(C.int64_t(tiles), C.int64_t(n)))
		}
		if n == rows || !sliced(tiles, n) {
			return most
		}
	}
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

// tilesOf is how many tiles of outputs a tiled or sliced product has.
func tilesOf(then Epilogue, outputs int) int {
	return up(outputs, int(C.tiled_outputs(swiglu(then))))
}

// thinOutputs is how many outputs a block of a thin product computes.
func thinOutputs(rows int, then Epilogue) int {
	return int(C.thin_outputs(C.int(rows), swiglu(then)))
}

func swiglu(then Epilogue) C.int {
	if then == SwiGLU {
		return 1
	}
	return 0
}

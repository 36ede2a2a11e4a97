// Weights of a product's tile, asked for ahead of their use. Included once before the
// tile.

// TILE_AHEAD is how many lines of its panel a tile asks for ahead. Two rows and more
// compute for so long between two loads that the loads in flight alone would leave memory
// idle. What lies behind a panel is mostly the next one, and is never read.
enum { TILE_AHEAD = 32 };

VEC words w_load_ahead(const uint32_t *w) {
	__builtin_prefetch(w + TILE_AHEAD * TDM_LANES);
	return w_load(w);
}

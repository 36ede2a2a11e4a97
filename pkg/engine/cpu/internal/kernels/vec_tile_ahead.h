// What a product's tiles ask for while they compute: the unit that comes next, a part in
// each pass over this one, so that several rows find their weights in the core's second
// cache. Included once before the tile. Nothing is read, so that nothing depends on it
// but time.

enum {
	TILE_STEPS = 16, // pairs of K between two times that a tile asks
	TILE_PASSES = 3  // over a unit at which it begins to pay: fewer keep memory busy as it is
};

typedef struct tile_ahead {
	const uint32_t *next; // a line that nobody asked for yet
	size_t left;          // lines of the unit from there on
	size_t lines;         // how many of them are asked for at a time
} tile_ahead;

// unit_ahead is for a unit of a product that takes so many passes.
VEC tile_ahead unit_ahead(const tdm_product *job, int unit, int passes) {
	const int next = unit + job->stride;
	const size_t lines = TDM_UNIT_PANELS * job->pairs;
	if (passes < TILE_PASSES || !job->stride || (next + 1) * TDM_UNIT_PANELS > job->panels)
		return (tile_ahead){NULL, 0, 0};
	return (tile_ahead){(const uint32_t *)job->w + (size_t)next * lines * TDM_LANES, lines,
		(size_t)(TILE_STEPS * PRODUCT_PANELS + passes - 1) / (size_t)passes};
}

VEC void ask(tile_ahead *a) {
	const size_t lines = a->lines < a->left ? a->lines : a->left;
	for (size_t i = 0; i < lines; i++, a->next += TDM_LANES)
		__builtin_prefetch(a->next, 0, 2);
	a->left -= lines;
}

// after is what is left when a tile has gone over so many pairs.
VEC tile_ahead after(tile_ahead a, size_t pairs) {
	const size_t lines = (pairs + TILE_STEPS - 1) / TILE_STEPS * a.lines;
	if (lines >= a.left)
		return (tile_ahead){NULL, 0, 0};
	return (tile_ahead){a.next + lines * TDM_LANES, a.left - lines, a.lines};
}

package kernels

// Item is an attention item, or a part of one, as a batch's plan has it.
type Item struct {
	Sequence, KVHead, First, Count int
	Part, Parts                    int
	Whole                          int // of a part: its item's counter
	Results, ResultsEnd            int // of a part: its item's results, in floats
}

// Span is what of a sequence a batch holds.
type Span struct{ Start, Count int }

// PlanOf is the plan of a batch, how many counters it has and how many floats for results.
func PlanOf(threads int, shape Shape, bounds BatchBounds, batch []Span) (items []Item, counters, results int, err error) {
	k, s, err := planWorkspace(threads, shape, bounds)
	if err != nil {
		return nil, 0, 0, err
	}
	if k.memory, err = build(func(a *arena) { k.lay(a, &s) }); err != nil {
		return nil, 0, 0, err
	}
	defer k.Free()
	*k.step = s
	for _, q := range batch {
		if _, _, err := k.Add(make([]int32, q.Count), q.Start, nil); err != nil {
			return nil, 0, 0, err
		}
	}
	k.plan()
	for _, i := range k.items[:k.step.items] {
		item := Item{
			Sequence: int(i.sequence), KVHead: int(i.kv_head), First: int(i.first), Count: int(i.count),
			Part: int(i.part), Parts: int(i.parts), Whole: int(i.whole), Results: int(i.results),
		}
		if item.Parts > 1 {
			q := batch[item.Sequence]
			splits := (q.Start + item.First + item.Count + SplitTokens - 1) / SplitTokens
			item.ResultsEnd = item.Results + splits*resultSize(shape, item.Count)
			if k.unfinished[item.Whole] != int32(item.Parts) {
				item.Whole = -1
			}
		}
		items = append(items, item)
	}
	return items, len(k.unfinished), k.results, nil
}

package grammar

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Bounds of structural tags. A request has at most 512 tools, for each of which a format has at most
// three tags.
const (
	maxTags     = 3*512 + 1
	maxTriggers = 3*512 + 1
	maxSpecial  = 16
)

// tags goes on with free text in which structural tags stand. field says what an error is of.
func (p *program) tags(form *inferencev1.StructuralTags) (start int32, field string, err error) {
	if field, err := p.checkTags(form); err != nil {
		return 0, field, err
	}
	p.special = form.GetSpecialTokens()
	spell := speller(p.special)

	// After a group: the end, or free text again.
	behind, again := end, p.loop()
	if form.GetRepeats() && len(form.GetTriggers()) > 0 {
		behind = again
	}
	g := tagGroup{program: p, next: p.loop()}
	if field, err := g.add(form.GetTags(), spell); err != nil {
		return 0, field, err
	}
	closes, err := p.text(spell(form.GetClose()), behind)
	if err != nil {
		return 0, "close", err
	}
	p.nodes[g.next].ways = []int32{closes}
	if !form.GetSingle() {
		more, err := g.tag(spell(form.GetSeparator()), "")
		if err != nil {
			return 0, "separator", err
		}
		p.nodes[g.next].ways = append(p.nodes[g.next].ways, more)
	}
	if len(form.GetTriggers()) > 0 {
		return g.triggered(form, spell, again)
	}
	if start, err = g.tag(spell(form.GetOpen()), ""); err != nil {
		return 0, "open", err
	}
	if field, err = p.checkReached(g.starts); err != nil || form.GetOtherwise() == nil {
		return start, field, err
	}
	other, field, err := p.form(form.GetOtherwise())
	if err != nil {
		return 0, "otherwise." + field, err
	}
	if reaches, err := p.productive(); err != nil || !reaches[other] {
		return 0, "otherwise." + field, cmp.Or(err, errNothing)
	}
	return p.split(start, other), "", nil
}

// tagGroup is tags of which one comes after the other.
type tagGroup struct {
	*program
	begins []string // of each tag
	starts []int32  // behind that
	next   int32    // after a tag
}

// add adds what comes behind the beginning of each tag. If it cannot, field says what is wrong.
func (g *tagGroup) add(tags []*inferencev1.StructuralTag, spell func(string) string) (field string, err error) {
	made := make(map[tagKey]int32) // several tags may have the same JSON
	for i, tag := range tags {
		at := fmt.Sprintf("tags[%d]", i)
		key := keyOf(tag)
		start, has := made[key]
		if !has {
			closes, err := g.text(spell(tag.GetEnd()), g.next)
			if err != nil {
				return at + ".end", err
			}
			if start, err = g.schemaBefore(tag.GetJsonSchema(), tag.GetLenient(), closes); err != nil {
				return at + ".json_schema", err
			}
			made[key] = start
		}
		g.begins, g.starts = append(g.begins, spell(tag.GetBegin())), append(g.starts, start)
	}
	return "", nil
}

// tag goes on with one of the tags, but for what stands already of what comes before it.
func (g *tagGroup) tag(before, has string) (int32, error) {
	var ways []int32
	for i, start := range g.starts {
		rest, fits := strings.CutPrefix(before+g.begins[i], has)
		if !fits {
			continue
		}
		way, err := g.text(rest, start)
		if err != nil {
			return 0, err
		}
		ways = append(ways, way)
	}
	return g.split(ways...), nil
}

// triggered is free text, at again too, in which triggers lead to the tags.
func (g *tagGroup) triggered(form *inferencev1.StructuralTags, spell func(string) string, again int32) (start int32, field string, err error) {
	triggers := make([]string, len(form.GetTriggers()))
	ways := make([]int32, len(triggers))
	for i, trigger := range form.GetTriggers() {
		triggers[i] = spell(trigger)
		if ways[i], err = g.tag(spell(form.GetOpen()), triggers[i]); err != nil {
			return 0, "triggers", err
		}
		if ways[i] == nowhere {
			return 0, fmt.Sprintf("triggers[%d]", i), errors.New("no tag begins with it")
		}
	}
	first := g.freeNode(triggers, ways, form.GetAtStart())
	g.nodes[again].ways = []int32{first}
	if form.GetAtStart() {
		g.nodes[again].ways = []int32{g.freeNode(nil, nil, false)} // no longer at the start
	}
	field, err = g.checkReached(g.starts)
	return first, field, err
}

// tagKey is what follows the beginning of a tag.
type tagKey struct {
	schema, end string
	lenient     bool
}

func keyOf(tag *inferencev1.StructuralTag) tagKey {
	return tagKey{tag.GetJsonSchema(), tag.GetEnd(), tag.GetLenient()}
}

func (p *program) freeNode(triggers []string, ways []int32, atStart bool) int32 {
	return p.add(node{kind: nodeFree, lexeme: p.free(triggers, atStart), ways: ways})
}

// checkReached refuses tags whose JSON nothing matches: they could never come.
func (p *program) checkReached(starts []int32) (field string, err error) {
	reaches, err := p.productive()
	if err != nil {
		return "", err
	}
	for i, at := range starts {
		if !reaches[at] {
			return fmt.Sprintf("tags[%d].json_schema", i), errNothing
		}
	}
	return "", nil
}

func (p *program) checkTags(form *inferencev1.StructuralTags) (field string, err error) {
	if form.GetOtherwise() != nil && (len(form.GetTriggers()) > 0 || form.GetRepeats()) {
		return "otherwise", errors.New("is given together with triggers or repeats: leave them out")
	}
	if n := len(form.GetTags()); n == 0 || n > maxTags {
		return "tags", fmt.Errorf("%d tags are outside 1 to %d", n, maxTags)
	}
	if n := len(form.GetTriggers()); n > maxTriggers {
		return "triggers", fmt.Errorf("%d triggers are more than %d", n, maxTriggers)
	}
	if n := len(form.GetSpecialTokens()); n > maxSpecial {
		return "special_tokens", fmt.Errorf("%d tokens are more than %d", n, maxSpecial)
	}
	bytes, schemaBytes := len(form.GetOpen())+len(form.GetSeparator())+len(form.GetClose()), 0
	counted := make(map[tagKey]bool) // equal ones are made once
	for _, tag := range form.GetTags() {
		bytes += len(tag.GetBegin())
		if key := keyOf(tag); !counted[key] {
			counted[key] = true
			bytes += len(tag.GetEnd())
			schemaBytes += len(tag.GetJsonSchema())
		}
	}
	for i, trigger := range form.GetTriggers() {
		if bytes += len(trigger); trigger == "" {
			return fmt.Sprintf("triggers[%d]", i), errors.New("is empty")
		}
	}
	if bytes > MaxSourceBytes {
		return "tags", fmt.Errorf("the fixed texts have %d bytes, more than %d", bytes, MaxSourceBytes)
	}
	if schemaBytes > MaxSourceBytes {
		return "tags", fmt.Errorf("the schemas have %d bytes, more than %d", schemaBytes, MaxSourceBytes)
	}
	for i, trigger := range form.GetTriggers() {
		for j, other := range form.GetTriggers() {
			if err := p.tick(1); err != nil {
				return "triggers", err
			}
			if i != j && strings.Contains(trigger, other) {
				return fmt.Sprintf("triggers[%d]", i), fmt.Errorf("contains triggers[%d]: leave one of them out", j)
			}
		}
	}
	for i, name := range form.GetSpecialTokens() {
		if name == "" {
			return fmt.Sprintf("special_tokens[%d]", i), errors.New("is empty")
		}
	}
	return "", nil
}

// specialByte is around the name of a special token in the texts of a grammar. UTF-8 never has it.
const specialByte = 0xFF

// specialText is what stands for a special token in the texts of a grammar.
func specialText(name string) []byte {
	return append(append([]byte{specialByte}, name...), specialByte)
}

// speller writes special tokens so.
func speller(special []string) func(text string) string {
	names := slices.Clone(special)
	slices.SortFunc(names, func(a, b string) int { return len(b) - len(a) }) // the longest counts
	var pairs []string
	for _, name := range names {
		pairs = append(pairs, name, string(specialText(name)))
	}
	return strings.NewReplacer(pairs...).Replace
}

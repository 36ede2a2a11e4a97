package deadline_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/deadline"
)

// Queue behaves like a map of times.
func TestQueueIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := deadline.New[int]()
		model := map[int]time.Time{}
		epoch := time.Unix(0, 0)
		at := func(t *rapid.T) time.Time { return epoch.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "at"))) }
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				key, when := rapid.IntRange(0, 20).Draw(t, "key"), at(t)
				q.Set(key, when)
				model[key] = when
			},
			"clear": func(t *rapid.T) {
				key := rapid.IntRange(0, 20).Draw(t, "key")
				q.Clear(key)
				delete(model, key)
			},
			"pop": func(t *rapid.T) {
				now := at(t)
				key, ok := q.Pop(now)
				if !ok {
					for key, when := range model {
						if !when.After(now) {
							t.Fatalf("key %d at %v was not popped at %v", key, when, now)
						}
					}
					return
				}
				if when, there := model[key]; !there || when.After(now) {
					t.Fatalf("key %d was popped at %v, before %v", key, now, when)
				}
				delete(model, key)
			},
			"": func(t *rapid.T) {
				next, ok := q.Next()
				if ok != (len(model) > 0) {
					t.Fatalf("next gives %v for %v", ok, model)
				}
				for key, when := range model {
					if when.Before(next) || !q.Has(key) {
						t.Fatalf("next is %v, but key %d is due at %v", next, key, when)
					}
				}
			},
		})
	})
}

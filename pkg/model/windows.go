package model

import (
	"encoding/json"
	"fmt"
)

// Kinds of layers in layer_types.
const (
	layerFull    = "full_attention"
	layerSliding = "sliding_attention"
)

// defaultWindow stands for an absent sliding_window in a family that has one.
const defaultWindow = 4096

// layerTypes reads layer_types, which newer files have; nil if there is none.
func (f fields) layerTypes(s *Spec) []string {
	const key = "layer_types"
	if !f.has(key) {
		return nil
	}
	var types []string
	if err := json.Unmarshal(f.values[key], &types); err != nil {
		f.bad(key, f.shown(key)+" is not a list of names", "correct it")
		return nil
	}
	if len(types) != s.Layers {
		f.bad(key, fmt.Sprintf("%d layers, but num_hidden_layers is %d", len(types), s.Layers), "correct it")
		return nil
	}
	for i, kind := range types {
		if kind != layerFull && kind != layerSliding {
			f.bad(key, fmt.Sprintf("layer %d: %s is not supported", i, clip(kind)), `use a model whose layers are "full_attention" or "sliding_attention"`)
		}
	}
	return types
}

// window reads sliding_window: 0 if it is null.
func (f fields) window() int {
	const key = "sliding_window"
	if _, there := f.values[key]; !there {
		return defaultWindow
	}
	return f.integerOr(key, 0, 1, maxContext)
}

// setWindows gives the layers that slide says a window of so many tokens. A window
// that holds the whole context is none.
func (s *Spec) setWindows(window int, slides func(layer int) bool) {
	windows := make([]int, s.Layers)
	some := false
	for i := range windows {
		if window > 0 && window < s.ContextTokens && slides(i) {
			windows[i], some = window, true
		}
	}
	s.LayerWindows = nil
	if some {
		s.LayerWindows = windows
	}
}

// readNoWindows is for Llama, whose class knows no window.
func (f fields) readNoWindows(s *Spec) {
	for _, kind := range f.layerTypes(s) {
		if kind != layerFull {
			f.bad("layer_types", clip(kind)+" is not known to "+s.Architecture, "use a checkpoint without it")
		}
	}
	if f.has("sliding_window") && f.boolOr("use_sliding_window", true) {
		f.bad("sliding_window", f.shown("sliding_window")+" is not known to "+s.Architecture, "use a checkpoint without it")
	}
}

// readOneWindow is for Mistral: every layer has the window, or none has.
func (f fields) readOneWindow(s *Spec) {
	window := f.window()
	// The class does not look at layer_types; a file that means something by them
	// is of another model (Ministral mixes the two).
	for i, kind := range f.layerTypes(s) {
		if (kind == layerSliding) != (window > 0) {
			f.bad("layer_types", fmt.Sprintf("layer %d: %s with sliding_window %d: %s has only one kind of layer", i, kind, window, s.Architecture), "use a checkpoint without it")
		}
	}
	s.setWindows(window, func(int) bool { return true })
}

// readUpperWindows is for Qwen: layers from max_window_layers on have the window,
// or those that layer_types names, if use_sliding_window is true.
func (f fields) readUpperWindows(s *Spec) {
	window := 0
	if f.boolOr("use_sliding_window", false) {
		window = f.window()
	}
	first := f.integerOr("max_window_layers", 28, 0, maxLayers)
	types := f.layerTypes(s)
	for i, kind := range types {
		if kind == layerSliding && window == 0 {
			f.bad("layer_types", fmt.Sprintf("layer %d: %s, but use_sliding_window and sliding_window turn the window off", i, kind), "correct one of them")
		}
	}
	s.setWindows(window, func(layer int) bool {
		if types != nil {
			return types[layer] == layerSliding
		}
		return layer >= first
	})
}

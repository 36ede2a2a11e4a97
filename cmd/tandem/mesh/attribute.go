package mesh

import (
	"context"
	"log/slog"
)

// attributed gives every line of a part of the process the part's name, once: some
// services add it themselves, since they are used without this package too.
type attributed struct {
	slog.Handler
	attribute slog.Attr
}

// withAttribute is logger with an attribute on those lines that lack one of its
// key.
func withAttribute(logger *slog.Logger, attribute slog.Attr) *slog.Logger {
	return slog.New(attributed{logger.Handler(), attribute})
}

// Handle adds the attribute unless the record has it.
func (h attributed) Handle(ctx context.Context, record slog.Record) error {
	found := false
	record.Attrs(func(a slog.Attr) bool {
		found = a.Key == h.attribute.Key
		return !found
	})
	if !found {
		record = record.Clone()
		record.AddAttrs(h.attribute)
	}
	return h.Handler.Handle(ctx, record)
}

// WithAttrs leaves the attribute to attrs if they have it.
func (h attributed) WithAttrs(attrs []slog.Attr) slog.Handler {
	inner := h.Handler.WithAttrs(attrs)
	for _, a := range attrs {
		if a.Key == h.attribute.Key {
			return inner
		}
	}
	return attributed{inner, h.attribute}
}

// WithGroup adds the attribute before the group begins.
func (h attributed) WithGroup(name string) slog.Handler {
	return h.Handler.WithAttrs([]slog.Attr{h.attribute}).WithGroup(name)
}

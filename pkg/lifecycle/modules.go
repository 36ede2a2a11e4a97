package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Module is one entry of a table of what a program is made of.
type Module struct {
	// New makes the module's services, once the modules that it needs are made. What it
	// opened it leaves to a service's Close, or closes when it fails. Nil: the module is
	// a name for those that it needs.
	New func(context.Context) ([]Service, error)
	// Needs names other modules of the table, in the order in which they are made.
	Needs []string
}

// Order is the targets and all that they need, each once and after what it needs.
func Order(table map[string]Module, targets ...string) ([]string, error) {
	var order, path []string
	var visit func(name string) error
	visit = func(name string) error {
		switch module, known := table[name]; {
		case slices.Contains(order, name):
		case slices.Contains(path, name):
			return fmt.Errorf("modules form a cycle: %s", strings.Join(append(path, name), " needs "))
		case !known:
			return fmt.Errorf("no module is called %s: %s", name, strings.Join(append(path, name), " needs "))
		default:
			path = append(path, name)
			for _, needed := range module.Needs {
				if err := visit(needed); err != nil {
					return err
				}
			}
			path = path[:len(path)-1]
			order = append(order, name)
		}
		return nil
	}
	for _, target := range targets {
		if err := visit(target); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// RunModules makes the modules that the targets need, in their Order, and runs their
// services as Run does. When ctx ends or a New fails before all are made, it closes what
// was made, and starts nothing; that ctx has ended is no error.
func RunModules(ctx context.Context, log *slog.Logger, stopTimeout time.Duration, table map[string]Module, targets ...string) error {
	order, err := Order(table, targets...)
	if err != nil {
		return err
	}
	var services []Service
	for _, name := range order {
		if ctx.Err() != nil {
			return closeAll(services)
		}
		if table[name].New == nil {
			continue
		}
		made, err := table[name].New(ctx)
		if err != nil {
			if ctx.Err() != nil {
				log.Info("interrupted while starting", slog.String("module", name), slog.Any("error", err))
				err = nil
			}
			return errors.Join(err, closeAll(services))
		}
		services = append(services, made...)
	}
	return Run(ctx, log, stopTimeout, services...)
}

// closeAll closes services in reverse order.
func closeAll(services []Service) error {
	var errs []error
	for _, service := range slices.Backward(services) {
		if service.Close != nil {
			errs = append(errs, service.Close())
		}
	}
	return errors.Join(errs...)
}

package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/loadtest/finetimer"
	"github.com/tandem-serving/tandem/pkg/chat"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/memory"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// Progress is told how far a stage of loading is: "map" in files, "digest" and
// "pack" in bytes.
type Progress func(stage string, done, total int64)

// served is the model of a process.
type served struct {
	dir string
	// spec has no Digest in a process with a router alone: that of the weights is known to
	// those who read them.
	spec model.Spec
	// tokenizer is nil in a process without a router.
	tokenizer *tokenizer.Tokenizer
	// grammars are those of all workers of the process, made for the first request that wants
	// one.
	grammars func() (*grammar.Cache, error)
	// chat is the chat template, nil if there is none that can be used: chatError
	// says why.
	chat      chat.Template
	chatError error
}

// newModelFiles reads what is quick to read of a model, for the parts that need it: its
// configuration, the headers of its weights and a router's tokenizer. A model that is not there
// should not be found after a long wait for etcd.
func (p *process) newModelFiles(context.Context) (_ []lifecycle.Service, err error) {
	router := len(p.of(controlv1.Role_ROLE_ROUTER)) > 0
	if p.computing() == 0 && !router {
		return nil, nil
	}
	o := &p.options
	if p.model.dir, err = modeldir.Find(o.Model); err != nil {
		return nil, err
	}
	spec, err := model.LoadSpec(p.model.dir, p.named())
	if err != nil {
		return nil, err
	}
	if o.ContextTokens > spec.ContextTokens { // nobody gets more context by it
		return nil, fmt.Errorf("--context-tokens: %d is more than the %d that %s has: pass less, or leave it out", o.ContextTokens, spec.ContextTokens, spec.Name)
	}
	p.model.spec = spec
	if router {
		p.model.tokenizer, err = tokenizer.Open(p.model.dir)
	}
	return nil, err
}

// named is how the model is read.
func (p *process) named() model.Options {
	return model.Options{Name: p.options.ModelName, ContextTokens: p.options.ContextTokens, Progress: p.progress}
}

// newModel loads what the parts need beyond modelfiles, once for the process: a router the chat
// template, workers the weights, block stores nothing.
func (p *process) newModel(ctx context.Context) ([]lifecycle.Service, error) {
	workers := p.computing()
	router := len(p.of(controlv1.Role_ROLE_ROUTER)) > 0
	if workers == 0 && !router {
		return nil, nil
	}
	if err := p.loadModel(ctx, router, workers); err != nil {
		return nil, errors.Join(err, p.unload())
	}
	return []lifecycle.Service{{Name: "model", Close: p.unload}}, nil
}

// newGrammars reads the texts of the model's tokens, unless a router of the process has.
func (m *served) newGrammars() (*grammar.Cache, error) {
	t := m.tokenizer
	if t == nil {
		var err error
		if t, err = tokenizer.Open(m.dir); err != nil {
			return nil, err
		}
	}
	vocabulary, err := grammar.NewVocabulary(m.spec.VocabSize, func(id int32) []byte {
		if t.IsSpecial(id) || slices.Contains(m.spec.EOS, id) {
			return nil
		}
		return t.TokenBytes(id)
	})
	if err != nil {
		return nil, err
	}
	for id := range int32(m.spec.VocabSize) {
		if t.IsSpecial(id) {
			vocabulary.NameSpecial(id, string(t.TokenBytes(id)))
		}
	}
	return grammar.NewCache(vocabulary), nil
}

// loadModel loads the model for a router, or none, and workers, for unload to free. What
// is quick to check is checked before the weights are read.
func (p *process) loadModel(ctx context.Context, router bool, workers int) (err error) {
	o, spec := &p.options, p.model.spec
	p.model.grammars = sync.OnceValues(p.model.newGrammars)
	if router {
		if err := p.openChat(ctx); err != nil {
			return err
		}
	}
	if workers == 0 {
		return nil
	}
	chosen := o.Engine
	chosen.ShareKV = o.KV.Shares() && p.decoding() > 0
	if err := chosen.Choose(spec, p.logger); err != nil {
		return err
	}
	if warning := tooManyThreads(chosen, runtime.NumCPU()); warning != "" {
		p.logger.Warn("threads wait for each other", slog.String("why", warning))
	}
	if err := o.Decode.CheckSlice(chosen.SliceBytes(spec)); err != nil {
		return flagError("--", err)
	}
	left, _ := memory.Available(os.DirFS("/"))
	drafts := o.Decode.Speculate == worker.SpeculateDraft && p.decoding() > 0
	if drafts {
		if left, err = p.besideDraft(chosen, left); err != nil {
			return err
		}
	}
	warning, err := chosen.Size(spec, workers, p.decoding(), left)
	if err != nil {
		return err
	}
	if warning != "" {
		p.logger.Warn("not every worker may have memory for a full context", slog.String("why", warning))
	}
	chosen.Simulated.NewTimer = func() simulated.Timer { return paced{finetimer.New()} }
	if p.engines, err = engines.Load(ctx, chosen, p.model.dir, p.named(), p.logger); err != nil {
		return err
	}
	p.model.spec = p.engines.Spec()
	if drafts {
		if err := p.engines.LoadDraft(ctx, engines.Draft{Dir: o.Decode.DraftModel, KVMemory: o.Decode.DraftKVMemory}, p.logger); err != nil {
			return err
		}
	}
	if o.Metrics != "" {
		if err := p.engines.MeasureLimits(ctx); err != nil { // while nothing computes
			return err
		}
	}
	return p.engines.Watch(p.registry, p.logger, func(why error) { p.stuck.within(p.stuckAfter(), why) })
}

// tooManyThreads says that the CPU engine is told to use more threads than there are processors;
// empty: it is not.
func tooManyThreads(e engines.Config, processors int) string {
	if e.Name != engines.CPU || e.CPU.Threads <= processors {
		return ""
	}
	return fmt.Sprintf("--threads %d is more than the %d processors that this process may use: pass %[2]d or less", e.CPU.Threads, processors)
}

// paced ends a simulated engine's steps within some tens of µs of their time, where Go's
// timers can be a millisecond late.
type paced struct{ finetimer.Timer }

// Wait implements simulated.Timer: nobody but its context wakes the timer.
func (p paced) Wait(ctx context.Context, d time.Duration) error {
	return finetimer.Wait(ctx, p.Timer, d)
}

func (p *process) unload() error {
	if p.engines == nil {
		return nil
	}
	return p.engines.Close()
}

// newEngine makes the engine of a worker. A process whose GPU is lost ends, even if a call
// of its driver never returns.
func (p *process) newEngine(w *part) (engine.Engine, error) {
	made, err := p.engines.New(w.id, w.role)
	if losing, can := engine.As[engine.LossNotifier](made); can {
		p.stuck.endWhenLost(losing, p.stuckAfter(), w.ended)
	}
	return made, err
}

// openChat opens the chat template. One that was asked for has to be good; without
// the model's own, or with one that cannot be rendered, prompts can be completed.
func (p *process) openChat(ctx context.Context) error {
	m, file := &p.model, p.options.ChatTemplate
	m.chat, m.chatError = chat.Open(m.dir, file)
	switch {
	case m.chatError == nil:
		if err := chat.Try(ctx, m.chat); err != nil {
			p.logger.Warn("chat template fails on the simplest conversation", slog.Any("error", err))
		}
		return nil
	case file != "":
		return fmt.Errorf("--chat-template: %w", m.chatError)
	}
	m.chat = nil
	if !errors.Is(m.chatError, chat.ErrNone) {
		p.logger.Warn("chat template cannot be used: conversations are refused", slog.Any("error", m.chatError))
	}
	return nil
}

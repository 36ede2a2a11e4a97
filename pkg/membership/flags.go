package membership

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// RegisterFlags adds the flags, with defaults that work beside an etcd of this machine.
func (cfg *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&cfg.Endpoints, "etcd", []string{"http://127.0.0.1:2379"}, "addresses of etcd")
	fs.StringVar(&cfg.Username, "etcd-user", "", "user at etcd, where it asks for one and certificates do not say it")
	fs.StringVar(&cfg.PasswordFile, "etcd-password-file", "", "file with the password of --etcd-user")
	cfg.TLS.RegisterClientFlags(fs, "etcd")
	fs.DurationVar(&cfg.LeaseTTL, "lease-ttl", DefaultLeaseTTL, "how long etcd keeps a worker's record without hearing of it")
}

// ValidateFlags checks what flags set. Without endpoints `up` embeds an etcd.
func (cfg *Config) ValidateFlags() error {
	if err := cfg.validateEndpoints(); err != nil {
		return fmt.Errorf("--etcd: %w", err)
	}
	if (cfg.Username == "") != (cfg.PasswordFile == "") {
		return errors.New("--etcd-user: give it together with --etcd-password-file")
	}
	if err := cfg.TLS.ValidateClient(); err != nil {
		return err
	}
	if cfg.LeaseTTL < time.Second {
		return fmt.Errorf("--lease-ttl: %v is under 1s", cfg.LeaseTTL)
	}
	return nil
}

// Values of LastViewConfig.StateDir that are no folder.
const (
	// StateAuto is the folder where the system has a program keep its state.
	StateAuto = "auto"
	// StateOff is none.
	StateOff = "off"
)

// RegisterFlags adds the flag.
func (cfg *LastViewConfig) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&cfg.StateDir, "router-state-dir", StateAuto, "folder in which a router keeps its last view of the workers, to start from while etcd is away: auto ($STATE_DIRECTORY, or tandem in $XDG_STATE_HOME or ~/.local/state), off, or a folder")
}

// Folder is the folder that StateDir means; empty: nowhere. getenv is os.Getenv.
func (cfg *LastViewConfig) Folder(getenv func(string) string) string {
	switch cfg.StateDir {
	case "", StateOff:
		return ""
	case StateAuto:
	default:
		return cfg.StateDir
	}
	// systemd's, of which there may be several; else the user's.
	if folder, _, _ := strings.Cut(getenv("STATE_DIRECTORY"), ":"); folder != "" {
		return folder
	}
	if folder := getenv("XDG_STATE_HOME"); filepath.IsAbs(folder) {
		return filepath.Join(folder, "tandem")
	}
	if home := getenv("HOME"); filepath.IsAbs(home) && home != "/" {
		return filepath.Join(home, ".local", "state", "tandem")
	}
	return ""
}

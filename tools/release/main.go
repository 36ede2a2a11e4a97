// Command release makes the modules of this checkout usable outside it: in the
// checkout they find one another by replace lines, which `go install` refuses and
// `go get` ignores. From HEAD it makes commits beside the branch, one a module in the
// order of their dependencies, whose go.mod files require one another at one version.
//
//	release --version v1.2.3 --tag          tag them, proto/v1.2.3 and so on, to be pushed
//	release --version v1.2.3 --proxy DIR    write them as a file proxy (GOPROXY=file://DIR)
//
// The working tree, the branch and uncommitted changes are left alone.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

func main() {
	version := flag.String("version", "", "the version, such as v1.2.3")
	tag := flag.Bool("tag", false, "tag the release in this repository")
	proxy := flag.String("proxy", "", "write a file proxy into this folder")
	flag.Parse()
	if err := run(*version, *tag, *proxy); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(version string, tag bool, proxy string) (err error) {
	if semver.Canonical(version) != version || version == "" {
		return fmt.Errorf("--version %q is none: write it like v1.2.3", version)
	}
	if !tag && proxy == "" {
		return errors.New("nothing to do: say --tag or --proxy DIR")
	}
	// The repository itself, also from a worktree of it: module zips are made from there.
	root, err := git(".", "rev-parse", "--path-format=absolute", "--git-common-dir")
	if err != nil {
		return err
	}
	root = filepath.Dir(root)
	head, err := git(".", "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "tandem-release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	tree := filepath.Join(scratch, "tree")
	if _, err := git(root, "worktree", "add", "--quiet", "--detach", tree, head); err != nil {
		return err
	}
	defer func() {
		_, removed := git(root, "worktree", "remove", "--force", tree)
		err = errors.Join(err, removed)
	}()
	modules, err := workspace(tree)
	if err != nil {
		return err
	}
	var tags []string
	if tag {
		for _, m := range modules {
			tags = append(tags, m.folder+"/"+version)
		}
		taken, err := git(tree, append([]string{"tag", "--list"}, tags...)...)
		if err != nil {
			return err
		}
		if taken != "" {
			return fmt.Errorf("there are tags of this version already: choose another --version, or delete them:\n%s", taken)
		}
	}
	if proxy == "" {
		proxy = filepath.Join(scratch, "proxy") // the checksums need the zip files anyhow
	}
	sums := map[string][]string{}
	for _, m := range modules {
		if err := m.pin(tree, version, modules, sums); err != nil {
			return fmt.Errorf("%s: %w", m.folder, err)
		}
		revision, err := commit(tree, "Release "+m.folder+" "+version)
		if err != nil {
			return err
		}
		if sums[m.path], err = m.publish(root, revision, version, proxy); err != nil {
			return fmt.Errorf("%s: %w", m.folder, err)
		}
	}
	if !tag {
		return nil
	}
	// All or none.
	var create strings.Builder
	for _, name := range tags {
		fmt.Fprintf(&create, "create refs/tags/%s HEAD\n", name)
	}
	if _, err := gitReading(create.String(), tree, "update-ref", "--stdin"); err != nil {
		return err
	}
	fmt.Println(strings.Join(tags, "\n"))
	return nil
}

// mod is a module of the workspace.
type mod struct {
	// folder is relative to the root, path what others import.
	folder, path string
	file         *modfile.File
}

// workspace lists the modules of go.work, each after those that it requires.
func workspace(tree string) ([]mod, error) {
	text, err := os.ReadFile(filepath.Join(tree, "go.work"))
	if err != nil {
		return nil, err
	}
	work, err := modfile.ParseWork("go.work", text, nil)
	if err != nil {
		return nil, err
	}
	var left, sorted []mod
	for _, use := range work.Use {
		name := filepath.Join(tree, use.Path, "go.mod")
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		file, err := modfile.Parse(name, text, nil)
		if err != nil {
			return nil, err
		}
		left = append(left, mod{folder: filepath.ToSlash(filepath.Clean(use.Path)), path: file.Module.Mod.Path, file: file})
	}
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(m mod) bool {
			return !slices.ContainsFunc(left, m.requires)
		})
		if i < 0 {
			return nil, errors.New("the modules of go.work require one another in a circle")
		}
		sorted = append(sorted, left[i])
		left = slices.Delete(left, i, i+1)
	}
	return sorted, nil
}

func (m mod) requires(other mod) bool {
	return slices.ContainsFunc(m.file.Require, func(r *modfile.Require) bool { return r.Mod.Path == other.path })
}

// pin has the module require its siblings at a version instead of finding them beside
// it. sums are the lines of go.sum for those that were released before.
func (m mod) pin(tree, version string, siblings []mod, sums map[string][]string) error {
	folder := filepath.Join(tree, m.folder)
	var lines []string
	for _, sibling := range siblings {
		if err := m.file.DropReplace(sibling.path, ""); err != nil {
			return err
		}
		if !m.requires(sibling) {
			continue
		}
		if err := m.file.AddRequire(sibling.path, version); err != nil {
			return err
		}
		lines = append(lines, sums[sibling.path]...)
	}
	m.file.Cleanup()
	if len(m.file.Replace) > 0 {
		return fmt.Errorf("it replaces %s, which nobody who installs it would see", m.file.Replace[0].Old.Path)
	}
	text, err := m.file.Format()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "go.mod"), text, 0o600); err != nil {
		return err
	}
	old, err := os.ReadFile(filepath.Join(folder, "go.sum"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	lines = append(lines, strings.Split(strings.TrimSpace(string(old)), "\n")...)
	slices.Sort(lines)
	if err := os.WriteFile(filepath.Join(folder, "go.sum"), []byte(strings.TrimSpace(strings.Join(lines, "\n"))+"\n"), 0o600); err != nil {
		return err
	}
	// Go adds the repository's license to a module without one; the proxy's zip must be the same.
	license, err := os.ReadFile(filepath.Join(tree, "LICENSE"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "LICENSE"), license, 0o600)
}

// publish writes the module as a commit has it into a file proxy, and returns its lines
// for go.sum.
func (m mod) publish(root, revision, version, proxy string) ([]string, error) {
	escaped, err := module.EscapePath(m.path)
	if err != nil {
		return nil, err
	}
	folder := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	base := filepath.Join(folder, version)
	archive, err := os.Create(base + ".zip")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(zip.CreateFromVCS(archive, module.Version{Path: m.path, Version: version}, root, revision, m.folder), archive.Close()); err != nil {
		return nil, err
	}
	text, err := m.file.Format()
	if err != nil {
		return nil, err
	}
	info := fmt.Sprintf(`{"Version":%q,"Time":%q}`, version, time.Now().UTC().Format(time.RFC3339))
	if err := errors.Join(
		os.WriteFile(base+".mod", text, 0o600),
		os.WriteFile(base+".info", []byte(info), 0o600),
		os.WriteFile(filepath.Join(folder, "list"), []byte(version+"\n"), 0o600),
	); err != nil {
		return nil, err
	}
	all, err := dirhash.HashZip(base+".zip", dirhash.Hash1)
	if err != nil {
		return nil, err
	}
	requirements, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return os.Open(base + ".mod") })
	if err != nil {
		return nil, err
	}
	return []string{
		fmt.Sprintf("%s %s %s", m.path, version, all),
		fmt.Sprintf("%s %s/go.mod %s", m.path, version, requirements),
	}, nil
}

// commit commits everything in a tree and says which commit it is; who has no name in
// Git is "release".
func commit(tree, message string) (revision string, err error) {
	if _, err := git(tree, "add", "--all"); err != nil {
		return "", err
	}
	args := []string{"commit", "--quiet", "--no-verify", "--message", message}
	if _, err := git(tree, "config", "user.email"); err != nil {
		args = append([]string{"-c", "user.name=release", "-c", "user.email=release@localhost"}, args...)
	}
	if _, err := git(tree, args...); err != nil {
		return "", err
	}
	return git(tree, "rev-parse", "HEAD")
}

func git(folder string, args ...string) (string, error) { return gitReading("", folder, args...) }

// gitReading is git with a standard input.
func gitReading(input, folder string, args ...string) (string, error) {
	command := exec.Command("git", args...)
	command.Dir, command.Stdin = folder, strings.NewReader(input)
	var failure strings.Builder
	command.Stderr = &failure
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(failure.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/sources"
)

// maxPlanFile bounds a saved plan that is read, in bytes: 5,000 steps have about 10 MB.
const maxPlanFile = 256 << 20

// origin says where a snapshot came from, so that it can be found again. No credentials are in it.
func (c *cli) origin(f *sourceFlags, snapshot *sources.Snapshot) (plan.Origin, error) {
	if f.dir == "" {
		source, err := c.openGit(f, c.cacheDir())
		if err != nil {
			return plan.Origin{}, err
		}
		defer func() { _ = source.Close() }() // only its name was wanted
		return plan.Origin{Git: source.String(), Branch: f.config.Branch, Path: f.config.Path, Revision: snapshot.Revision}, nil
	}
	if !f.isFile() {
		directory, err := filepath.Abs(f.dir)
		return plan.Origin{Directory: directory, Revision: snapshot.Revision}, err
	}
	base, err := filepath.Abs(f.base)
	if err != nil {
		return plan.Origin{}, err
	}
	revision, err := f.contentHash()
	return plan.Origin{Directory: base, Files: f.files(), Revision: revision}, err
}

// contentHash is the revision of a source that is single files.
func (f *sourceFlags) contentHash() (string, error) {
	hash := sha256.New()
	for _, name := range f.files() {
		content, err := f.readFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%d:%s%d:%s", len(name), name, len(content), content)
	}
	return "sha256:" + hex.EncodeToString(hash.Sum(nil)), nil
}

// savePlan writes a plan for apply. It appears whole or not at all, and takes no other file's place.
func (c *cli) savePlan(path string, p *hostPlan) error {
	if p.Unknown != "" {
		return fmt.Errorf("the plan is not saved: the host cannot be read: %s", p.Unknown)
	}
	content, err := plan.EncodeFile(p.Plan, p.origin, version)
	if err != nil {
		return err
	}
	if err := writePlan(path, content); err != nil {
		return fmt.Errorf("saving the plan: %w", err)
	}
	fmt.Fprintf(c.stderr, "Saved the plan; carry out exactly this with: gitvirt apply %s\n", path)
	return nil
}

func writePlan(path string, content []byte) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s exists and is no file; name another one", path)
	default:
		head, err := headOf(path)
		if err != nil {
			return err
		}
		if !plan.IsFile(head) {
			return fmt.Errorf("%s exists and is no saved plan; it is left as it is, name another file", path)
		}
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }() // after the renaming there is none
	_, err = file.Write(content)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// headOf is the beginning of a file, by which a saved plan is told.
func headOf(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	head := make([]byte, 512)
	n, err := io.ReadFull(file, head)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return head[:n], err
}

// planFile reads the plan that apply was given, and returns nil when its argument is a source of manifests.
func (f *planFlags) planFile(args []string) (*plan.File, error) {
	if len(args) != 1 {
		return nil, nil //nolint:nilnil // no plan is the usual case
	}
	path := args[0]
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil, nil //nolint:nilnil // a folder, a URL or a mistake, which the source tells
	}
	head, err := headOf(path)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if !plan.IsFile(head) {
		return nil, noPlan(path, head)
	}
	if info.Size() > maxPlanFile {
		return nil, fmt.Errorf("reading the plan %s: %d bytes are too many", path, info.Size())
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the plan: %w", err)
	}
	file, err := plan.DecodeFile(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	switch s := &f.source; {
	case s.dir != "" || s.config.URL != "" || s.config.Branch != "" || s.config.Path != "" || f.rev != "":
		return nil, fmt.Errorf("%s is a saved plan, which says itself where its manifests are; leave --dir, --git, --branch, --path and --rev out", path)
	case len(f.selection.Targets) > 0 || len(f.selection.Excludes) > 0:
		return nil, fmt.Errorf("%s is a saved plan and is carried out as it is; give --target and --exclude to gitvirt plan", path)
	}
	return file, nil
}

// noPlan refuses a file that can be neither a plan nor a manifest.
func noPlan(path string, head []byte) error {
	switch {
	case bytes.Contains(head, []byte(`"format_version"`)):
		return fmt.Errorf("%s is the output of a plan and not a plan that can be carried out; save one with: gitvirt plan --out FILE", path)
	case !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
		return fmt.Errorf("%s is neither a manifest (.yaml, .yml, .json) nor a saved plan: %w", path, plan.ErrNoPlanFile)
	}
	return nil
}

// applyFile carries out a saved plan if the world is as it was.
func (c *cli) applyFile(ctx context.Context, f *planFlags, file *plan.File, o *applyOptions) error {
	f.asSaved(file)
	now, platform, err := c.planHost(ctx, f)
	if err != nil {
		return err
	}
	defer platform.close()
	if f.source.refused {
		return errors.New(f.source.untrusted)
	}
	if now.origin.Revision != file.Source.Revision {
		return fmt.Errorf("the plan is stale: %s has changed since it was saved; nothing was carried out, save a new plan", plan.Inert(file.Source.String()))
	}
	comparison := plan.Compare(file.Plan, now.Plan)
	if len(comparison.Moved) > 0 {
		c.tellStale(file, &comparison)
		return errors.New("the plan is stale; nothing was carried out, save a new plan")
	}
	if err := c.begin(now, o); err != nil {
		return err
	}
	for _, address := range comparison.Done {
		if o.json() {
			if err := writeLine(c.stdout, &line{Type: lineDoneAlready, Address: address.String()}); err != nil {
				return err
			}
			continue
		}
		c.printf("%s/%s: done already\n", address.Namespace, address.Name)
	}
	switch {
	case !now.Empty():
		return c.carryOut(ctx, now, platform, o)
	case o.json():
	case len(now.Steps) > 0:
		c.printf("What is left of the plan is blocked or waits; nothing was carried out.\n")
	case len(comparison.Done) > 0:
		c.printf("This plan is applied already; nothing was carried out.\n")
	}
	return nil
}

// asSaved has the flags ask for what a saved plan was made of.
func (f *planFlags) asSaved(file *plan.File) {
	source := file.Source
	f.source.config.URL, f.source.config.Branch, f.source.config.Path = source.Git, source.Branch, source.Path
	switch {
	case source.Git != "":
		f.rev = sources.CommitOf(source.Revision) // the other repositories are read as they are now, and that is compared
	case len(source.Files) > 0:
		f.source.base, f.source.dir, f.source.more = source.Directory, source.Files[0], source.Files[1:]
	default:
		f.source.dir = source.Directory
	}
	if partial := file.Plan.Partial; partial != nil {
		f.selection = plan.Selection{Targets: partial.Targets, Excludes: partial.Excludes, MayMiss: true}
	}
}

// tellStale says per object what moved since a plan was saved.
func (c *cli) tellStale(file *plan.File, comparison *plan.Comparison) {
	var b strings.Builder
	fmt.Fprintf(&b, "Since the plan %s was saved, for revision %s of %s:\n", plan.Inert(file.Plan.ID), plan.Inert(file.Source.Revision), plan.Inert(file.Source.String()))
	for _, moved := range comparison.Moved {
		name := "the plan"
		if !moved.Address.IsZero() {
			name = moved.Address.Namespace + "/" + moved.Address.Name
		}
		fmt.Fprintf(&b, "  %s: %s\n", plan.Inert(name), plan.Inert(moved.What))
	}
	for _, address := range comparison.Done {
		fmt.Fprintf(&b, "  %s/%s: done already\n", address.Namespace, address.Name)
	}
	if n := len(comparison.Rest); n > 0 {
		fmt.Fprintf(&b, "  %d other step%s: as planned\n", n, plural(n))
	}
	fmt.Fprint(c.stderr, b.String())
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/schemas/signers"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/git"
	"github.com/gitvirt/gitvirt/sources/trust"
)

// trustFlags say whose commits are applied.
type trustFlags struct {
	keys  []string
	since string
}

func (f *trustFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringArrayVar(&f.keys, "trusted-keys", nil, "file with keys whose signatures of commits count, besides those of the Fleet: armored PGP keys, lines of OpenSSH's allowed_signers or authorized_keys (may be repeated)")
	flags.StringVar(&f.since, "trusted-since", "", "full hash of a commit that is trusted with all its history, whoever signed it")
}

// fullHash is how --trusted-since is written: a name or a short hash could become another commit.
var fullHash = regexp.MustCompile(`^[0-9a-f]{40}$`)

// judge reads the keys. Without any it trusts nobody, and wants nothing as long as the Fleet does not.
func (f *trustFlags) judge() (*trust.Judge, error) {
	switch {
	case f.since != "" && len(f.keys) == 0:
		return nil, errors.New("--trusted-since says where signatures begin to count; name whose count with --trusted-keys")
	case f.since != "" && !fullHash.MatchString(f.since):
		return nil, fmt.Errorf("--trusted-since %q is not the full hash of a commit; git rev-parse prints it", f.since)
	}
	anchor := trust.Anchor{Since: f.since}
	for _, name := range f.keys {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading the trusted keys: %w", err)
		}
		set, err := signers.Parse(string(content))
		if err != nil {
			return nil, fmt.Errorf("reading the trusted keys: %s: %w", name, err)
		}
		if set.Len() == 0 {
			return nil, fmt.Errorf("reading the trusted keys: %s holds no key", name)
		}
		anchor.Signers = signers.Join(anchor.Signers, set)
	}
	return trust.New(anchor, time.Now), nil
}

// vouch notes why a revision would not be applied by a controller with the same keys.
func (f *sourceFlags) vouch(ctx context.Context, judge *trust.Judge, source *git.Source, snapshot *sources.Snapshot) error {
	if !judge.Enforces() {
		if schemas.TrustOf(snapshot.Files) != nil {
			f.untrusted = "signatures were not checked, although the Fleet wants them: no --trusted-keys are given"
		}
		return nil
	}
	err := source.Vouch(ctx, judge, snapshot.Revision)
	if errors.Is(err, sources.ErrUntrusted) {
		f.untrusted, f.refused = "a controller with these keys does not apply this revision: "+err.Error(), true
		return nil
	}
	return err
}

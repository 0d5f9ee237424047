package trust_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/schemas/signers"
	"github.com/gitvirt/gitvirt/sources/trust"
)

const (
	tree   = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
	parent = "0123456789012345678901234567890123456789"
	header = "tree " + tree + "\nparent " + parent + "\nauthor Ann <ann@example.org> 1700000000 +0000\ncommitter Bob <bob@example.org> 1700000001 +0000\n"
)

func TestParseCommit(t *testing.T) {
	for _, test := range []struct{ reason, raw, payload, signature string }{
		{"not signed", header + "\nSubject\n\nBody\n", header + "\nSubject\n\nBody\n", ""},
		{"signed", header + "gpgsig -----BEGIN\n \n body\n -----END\n\nSubject\n", header + "\nSubject\n", "-----BEGIN\n\nbody\n-----END\n"},
		{"with an encoding", header + "encoding latin1\ngpgsig a\n b\n\nSubject\n", header + "encoding latin1\n\nSubject\n", "a\nb\n"},
		{"signed for SHA-256 as well", header + "gpgsig a\n b\ngpgsig-sha256 c\n d\n\nSubject\n", header + "\nSubject\n", "a\nb\n"},
		{"a merge of a signed tag", header + "mergetag object x\n gpgsig y\n\nSubject\n", header + "mergetag object x\n gpgsig y\n\nSubject\n", ""},
		{"a signature in the message", header + "\ngpgsig a\n", header + "\ngpgsig a\n", ""},
		{"no message", header + "\n", header + "\n", ""},
	} {
		t.Run(test.reason, func(t *testing.T) {
			commit, err := trust.ParseCommit([]byte(test.raw))
			if err != nil {
				t.Fatal(err)
			}
			if string(commit.Payload) != test.payload || commit.Signature != test.signature {
				t.Errorf("payload %q, signature %q", commit.Payload, commit.Signature)
			}
			if commit.Tree != tree || len(commit.Parents) != 1 || commit.Parents[0] != parent || commit.Committed.Unix() != 1700000001 || commit.Author != "Ann <ann@example.org>" {
				t.Errorf("%+v", commit)
			}
		})
	}
	for reason, raw := range map[string]string{
		"empty":                    "",
		"no end of the header":     header,
		"no committer":             strings.Join(strings.SplitAfter(header, "\n")[:3], "") + "\nSubject\n",
		"two trees":                "tree " + tree + "\n" + header + "\nSubject\n",
		"a parent at the end":      header + "parent " + parent + "\n\nSubject\n",
		"a short hash":             strings.Replace(header, parent, parent[:39], 1) + "\nSubject\n",
		"two signatures":           header + "gpgsig a\ngpgsig b\n\nSubject\n",
		"a signature at the top":   "gpgsig a\n" + header + "\nSubject\n",
		"a continuation at first":  " a\n" + header + "\nSubject\n",
		"a header without a value": header + "encoding\n\nSubject\n",
		"large":                    header + "\n" + strings.Repeat("x", 2<<20),
	} {
		if commit, err := trust.ParseCommit([]byte(raw)); err == nil {
			t.Errorf("%s: %+v", reason, commit)
		}
	}
}

// FuzzParseCommit holds that what was signed and the signature are all of a commit: nothing can be hidden from both.
func FuzzParseCommit(f *testing.F) {
	f.Add(header + "gpgsig a\n b\n\nSubject\n")
	f.Add(header + "mergetag x\n y\ngpgsig-sha256 c\n\nSubject\n")
	f.Fuzz(func(t *testing.T, raw string) {
		commit, err := trust.ParseCommit([]byte(raw))
		if err != nil {
			return
		}
		again, err := trust.ParseCommit(commit.Payload)
		if err != nil || again.Signature != "" || string(again.Payload) != string(commit.Payload) || again.Tree != commit.Tree ||
			strings.Join(again.Parents, " ") != strings.Join(commit.Parents, " ") {
			t.Fatalf("%q is signed as %q", raw, commit.Payload)
		}
		if !strings.Contains(raw, "\ngpgsig") && string(commit.Payload) != raw {
			t.Fatalf("%q loses something: %q", raw, commit.Payload)
		}
	})
}

// graph is a history in memory, none of which is signed.
type graph map[string]*trust.Commit

// Commit implements trust.History.
func (g graph) Commit(hash string) (*trust.Commit, error) {
	if commit, ok := g[hash]; ok {
		return commit, nil
	}
	return nil, trust.ErrMissing
}

// Trust implements trust.History: one commit in three says something, one of them nothing that can be read.
func (g graph) Trust(_ context.Context, hash string) (*schemas.FleetTrust, error) {
	switch hash[len(hash)-1] % 3 {
	case 0:
		return &schemas.FleetTrust{Signatures: schemas.SignaturesAll}, nil
	case 1:
		return &schemas.FleetTrust{Doubt: true}, nil
	}
	return nil, nil //nolint:nilnil // it says nothing
}

// TestNothingUnsignedPasses holds for every shape of a history, with clocks that are right or not: without a signature
// nothing is trusted but what is named.
func TestNothingUnsignedPasses(t *testing.T) {
	keys, err := signers.Parse("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		g := graph{}
		n := rapid.IntRange(1, 20).Draw(t, "commits")
		hash := func(i int) string { return fmt.Sprintf("%040d", i) }
		for i := range n {
			commit := &trust.Commit{Committed: time.Unix(int64(1_700_000_000+rapid.IntRange(-3, 3).Draw(t, "time")*100_000), 0)}
			for range rapid.IntRange(0, min(i, 3)).Draw(t, "parents") {
				commit.Parents = append(commit.Parents, hash(rapid.IntRange(0, i-1).Draw(t, "parent")))
			}
			g[hash(i)] = commit
		}
		head, base := hash(rapid.IntRange(0, n-1).Draw(t, "head")), hash(rapid.IntRange(0, n-1).Draw(t, "base"))
		judge := trust.New(trust.Anchor{Signers: keys, Since: base}, func() time.Time { return time.Unix(1_800_000_000, 0) })
		_, err := judge.Head(context.Background(), g, trust.Standing{}, head)
		var refused *trust.Refused
		switch {
		case head == base && err != nil:
			t.Fatalf("what is named is refused: %v", err)
		case head != base && !errors.As(err, &refused):
			t.Fatalf("%s passes after %s: %v", head, base, err)
		}
	})
}
